//! The crates of the workspace are those of the table in docs/architecture.md, and each depends on no other
//! crate of the workspace than the table allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a crate may depend on.
#[derive(Debug, PartialEq)]
enum Allowed {
    All,
    These(BTreeSet<String>),
}

/// The rows of the table "The crates": crate, what it holds, what it may depend on.
fn table(text: &str) -> BTreeMap<String, Allowed> {
    let section = text.split("\n## ").find(|section| section.starts_with("The crates")).expect("the section");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |row: &str| {
        let mut cells = row.trim_end_matches(" |").split(" | ");
        let name = cells.next().expect("a name").trim_end_matches('`').to_owned();
        let allowed = match cells.last().expect("a last cell").trim() {
            "all" => Allowed::All,
            "–" => Allowed::These(BTreeSet::new()),
            list => Allowed::These(list.split(", ").map(full_name).collect()),
        };
        (name, allowed)
    };
    rows.map(row).collect()
}

/// The table leaves out the common prefix.
fn full_name(short: &str) -> String {
    if short == "fulmen" { short.to_owned() } else { format!("fulmen-{short}") }
}

/// The workspace's crates among the dependencies of a manifest; those of tests do not count.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut counts = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            let header = line.trim_matches(['[', ']']);
            counts = !header.contains("dev-dependencies") && header.ends_with("dependencies");
        } else if counts && line.starts_with("fulmen") {
            let end = line.find([' ', '.', '=']).unwrap_or(line.len());
            found.insert(line[..end].to_owned());
        }
    }
    found
}

#[test]
fn the_table_of_crates_is_complete_and_kept() {
    let table = table(&read(&root().join("docs/architecture.md")));
    let folders = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let crates: BTreeMap<String, BTreeSet<String>> = folders
        .filter(|folder| folder.join("Cargo.toml").exists())
        .map(|folder| {
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            (name, dependencies(&read(&folder.join("Cargo.toml"))))
        })
        .collect();
    let (listed, there): (BTreeSet<_>, BTreeSet<_>) = (table.keys().collect(), crates.keys().collect());
    assert_eq!(listed, there, "the table in docs/architecture.md (left) and the folders of crates/ (right)");
    for (name, used) in &crates {
        if let Allowed::These(allowed) = &table[name] {
            let excess: Vec<_> = used.difference(allowed).collect();
            assert!(
                excess.is_empty(),
                "{name} depends on {excess:?}, which docs/architecture.md does not allow"
            );
            let unused: Vec<_> = allowed.difference(used).collect();
            assert!(
                unused.is_empty(),
                "docs/architecture.md lets {name} depend on {unused:?}, which it does not"
            );
        }
    }
    assert_eq!(table["fulmen-core"], Allowed::These(BTreeSet::new()), "core depends on no other crate");
    assert!(crates["fulmen"].contains("fulmen-cpu"), "the reader of manifests finds dependencies");
}

#[test]
fn rows_and_manifests_are_read() {
    let text = "# A\n\n## The crates\n\n| crate | what | may depend on |\n|---|---|---|\n\
                | `fulmen-a` | x, y | – |\n| `fulmen` | z | a, fulmen |\n| `fulmen-c` | w | all |\n\
                \n## Other\n\n| `fulmen-d` | x | – |\n";
    let rows = table(text);
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["fulmen", "fulmen-a", "fulmen-c"]);
    assert_eq!(rows["fulmen"], Allowed::These(["fulmen-a".to_owned(), "fulmen".to_owned()].into()));
    let manifest = "[package]\nname = \"fulmen-x\"\n[dependencies]\nfulmen-a.workspace = true\n\
                    serde = \"1\"\nfulmen-b = { workspace = true }\n\
                    [target.'cfg(unix)'.dependencies]\nfulmen={ path = \"x\" }\n\
                    [dev-dependencies]\nfulmen-c.workspace = true\n";
    assert_eq!(dependencies(manifest).into_iter().collect::<Vec<_>>(), ["fulmen", "fulmen-a", "fulmen-b"]);
}
