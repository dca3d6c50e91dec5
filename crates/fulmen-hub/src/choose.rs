//! Selects the files of a repository that make up a model.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::reference::is_inside;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoFile {
    /// Its path in the repository, with slashes.
    pub path: String,
    /// Its size in bytes, if known.
    pub size: Option<u64>,
}

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name: the path of its file or first shard. `None` for a folder of safetensors files.
    pub name: Option<String>,
    /// Its files: one, all shards, or those of a folder. The first is the one to open.
    pub files: Vec<RepoFile>,
    /// The alternatives.
    pub others: Vec<String>,
}

/// Why no model could be chosen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// There is no such file.
    #[error("there is no file {wanted:?}{}", instead(files))]
    NoFile {
        /// What was requested.
        wanted: String,
        /// The available files.
        files: Vec<String>,
    },
    /// Several files match.
    #[error("{wanted:?} matches several files: {}", listed(files))]
    Several {
        /// What was requested.
        wanted: String,
        /// The matching files.
        files: Vec<String>,
    },
    /// A shard is missing.
    #[error("{name} is split into {count} files, but file {shard} is missing")]
    Incomplete {
        /// One of its shards.
        name: String,
        /// The first missing shard, from 1.
        shard: u32,
        /// The number of shards.
        count: u32,
    },
    /// There is no model that can be run.
    #[error("it has no GGUF file and no model.safetensors with a config.json; it contains {}", listed(files))]
    NoModel {
        /// The available files.
        files: Vec<String>,
    },
}

fn instead(files: &[String]) -> String {
    if files.is_empty() {
        "; the repository has no GGUF files".to_owned()
    } else {
        format!("; available: {}", listed(files))
    }
}

fn listed(files: &[String]) -> String {
    const SHOWN: usize = 20;
    match files.len() {
        0 => "no files".to_owned(),
        n if n > SHOWN => format!("{} and {} more", files[..SHOWN].join(", "), n - SHOWN),
        _ => files.join(", "),
    }
}

/// Types by preference if none is requested: the most common one first, then similar ones.
const PREFERRED: [&str; 30] = [
    "Q4_K_M",
    "Q4_K",
    "Q4_K_S",
    "Q5_K_M",
    "Q5_K_S",
    "MXFP4",
    "MXFP4_MOE",
    "Q4_0",
    "Q4_1",
    "IQ4_NL",
    "IQ4_XS",
    "Q5_0",
    "Q5_1",
    "Q6_K",
    "Q8_0",
    "Q3_K_M",
    "Q3_K_L",
    "Q3_K_S",
    "IQ3_M",
    "IQ3_S",
    "IQ3_XS",
    "IQ3_XXS",
    "Q2_K",
    "IQ2_M",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "BF16",
    "F16",
    "F32",
];

/// Small files that a safetensors folder needs or may need.
const FOLDER_FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Selects the files of a model. `wanted` is the path of a file, or a part of its name that is unique to one
/// model, such as `Q8_0`. Without it, a GGUF file is selected (Q4_K_M if available), or else the safetensors
/// files.
pub fn choose(files: &[RepoFile], wanted: Option<&str>) -> Result<Choice, ChooseError> {
    let files: Vec<&RepoFile> = files.iter().filter(|file| is_inside(&file.path)).collect();
    let models = models(&files);
    let names = |models: &[&Gguf<'_>]| models.iter().map(|model| model.name().to_owned()).collect::<Vec<_>>();
    let all: Vec<&Gguf<'_>> = models.iter().collect();
    let Some(wanted) = wanted else {
        // Image projectors and importance matrices are not models.
        let runnable: Vec<&Gguf<'_>> = all.iter().copied().filter(|model| model.is_model()).collect();
        return match runnable.iter().min_by_key(|model| model.rank()) {
            Some(best) => best.choice(&names(&runnable)),
            None => folder(&files),
        };
    };
    if let Some(model) = all.iter().find(|model| model.shards.iter().any(|(_, file)| file.path == wanted)) {
        return model.choice(&names(&all));
    }
    if let Some(file) = files.iter().find(|file| file.path == wanted) {
        return Ok(Choice {
            name: Some(file.path.clone()),
            files: vec![(*file).clone()],
            others: Vec::new(),
        });
    }
    let fits = |model: &&Gguf<'_>| has_word(&stem(model.name()), &wanted.to_ascii_lowercase());
    let fitting: Vec<&Gguf<'_>> = all.iter().copied().filter(fits).collect();
    match fitting[..] {
        [model] => model.choice(&names(&all)),
        [] => Err(ChooseError::NoFile { wanted: wanted.to_owned(), files: names(&all) }),
        _ => Err(ChooseError::Several { wanted: wanted.to_owned(), files: names(&fitting) }),
    }
}

/// The models in a list of files: every GGUF file or complete set of shards, and the safetensors folder.
pub(crate) fn complete_models(files: &[RepoFile]) -> Vec<Choice> {
    let files: Vec<&RepoFile> = files.iter().collect();
    let gguf = models(&files);
    gguf.iter().filter_map(|model| model.choice(&[]).ok()).chain(folder(&files).ok()).collect()
}

/// Whether a part of a name, in lowercase, names a file: `q8_0` names `x-Q8_0.gguf`.
pub(crate) fn names(path: &str, part: &str) -> bool {
    has_word(&stem(path), part)
}

/// The type of the weights as the name of a file says: `Q4_K_M` for `x-q4_k_m.gguf`.
pub(crate) fn quantization(path: &str) -> Option<String> {
    let stem = match split(path) {
        Some((prefix, ..)) => stem(prefix),
        None => stem(path),
    };
    let is_type = |word: &&str| {
        let bits = ["iq", "tq", "q"].iter().find_map(|start| word.strip_prefix(start));
        matches!(*word, "f32" | "f16" | "bf16" | "mxfp4")
            || bits.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stem.split(['-', '.']).rfind(is_type).map(str::to_ascii_uppercase)
}

/// One GGUF model: a file, or all of its shards.
struct Gguf<'a> {
    /// The number of shards; 1 for a model that is not split.
    count: u32,
    /// The shards with their numbers, from 1.
    shards: Vec<(u32, &'a RepoFile)>,
}

impl Gguf<'_> {
    fn name(&self) -> &str {
        self.shards.first().map_or("", |(_, file)| &file.path)
    }

    fn is_model(&self) -> bool {
        let stem = stem(self.name());
        !has_word(&stem, "mmproj") && !has_word(&stem, "imatrix")
    }

    /// Lower is better: the type, then the size, then the name.
    fn rank(&self) -> (usize, u64, &str) {
        let stem = stem(self.name());
        let place = PREFERRED.iter().position(|dtype| has_word(&stem, &dtype.to_ascii_lowercase()));
        let bytes = self.shards.iter().map(|(_, file)| file.size.unwrap_or(0));
        (place.unwrap_or(PREFERRED.len()), bytes.fold(0, u64::saturating_add), self.name())
    }

    fn choice(&self, all: &[String]) -> Result<Choice, ChooseError> {
        // The shards are sorted, and there is one of each number.
        let present = (1..).zip(&self.shards).take_while(|(number, (shard, _))| shard == number).count();
        let name = self.name().to_owned();
        if present < self.count as usize {
            return Err(ChooseError::Incomplete { name, shard: present as u32 + 1, count: self.count });
        }
        let others = all.iter().filter(|other| **other != name).cloned().collect();
        let files = self.shards.iter().map(|(_, file)| (*file).clone()).collect();
        Ok(Choice { name: Some(name), files, others })
    }
}

fn models<'a>(files: &[&'a RepoFile]) -> Vec<Gguf<'a>> {
    let mut models: Vec<Gguf<'a>> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for &file in files.iter().filter(|file| file.path.to_ascii_lowercase().ends_with(".gguf")) {
        let (key, shard, count) = match split(&file.path) {
            Some((prefix, part, count)) => (format!("{prefix}/{count}"), part, count),
            None => (file.path.clone(), 1, 1),
        };
        let place = *places.entry(key).or_insert(models.len());
        match models.get_mut(place) {
            Some(model) => model.shards.push((shard, file)),
            None => models.push(Gguf { count, shards: vec![(shard, file)] }),
        }
    }
    for model in &mut models {
        model.shards.sort_by_key(|(shard, _)| *shard);
        model.shards.dedup_by_key(|(shard, _)| *shard);
    }
    models
}

/// `x-00002-of-00003.gguf` is shard 2 of 3 of `x`.
fn split(path: &str) -> Option<(&str, u32, u32)> {
    let (stem, _extension) = path.rsplit_once('.')?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, shard) = rest.rsplit_once('-')?;
    let number = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (shard, count) = (number(shard)?, number(count)?);
    (1..=count).contains(&shard).then_some((prefix, shard, count))
}

/// The file name of a path in lowercase, without its extension.
fn stem(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.strip_suffix(".gguf").unwrap_or(&name).to_owned()
}

/// Whether a text contains a whole word: `q4_k` is in `x-q4_k.y` but not in `x-q4_k_m`.
fn has_word(text: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut places = text.match_indices(word);
    places.any(|(at, _)| {
        !inside(text[..at].chars().next_back()) && !inside(text[at + word.len()..].chars().next())
    })
}

/// The files of a safetensors folder.
fn folder(files: &[&RepoFile]) -> Result<Choice, ChooseError> {
    let weights = |file: &RepoFile| file.path.starts_with("model") && file.path.ends_with(".safetensors");
    let wanted = |file: &&&RepoFile| {
        !file.path.contains('/') && (FOLDER_FILES.contains(&file.path.as_str()) || weights(file))
    };
    let mut chosen: Vec<RepoFile> = files.iter().filter(wanted).map(|file| (*file).clone()).collect();
    let has_config = chosen.iter().any(|file| file.path == "config.json");
    if !has_config || !chosen.iter().any(weights) {
        let files = files.iter().map(|file| file.path.clone()).collect();
        return Err(ChooseError::NoModel { files });
    }
    let mut shards: BTreeMap<(&str, u32), BTreeSet<u32>> = BTreeMap::new();
    for file in chosen.iter().filter(|file| weights(file)) {
        if let Some((prefix, shard, count)) = split(&file.path) {
            shards.entry((prefix, count)).or_default().insert(shard);
        }
    }
    for ((prefix, count), present) in shards {
        if let Some(shard) = (1..=count).find(|shard| !present.contains(shard)) {
            return Err(ChooseError::Incomplete { name: format!("{prefix}.safetensors"), shard, count });
        }
    }
    // Small files first: if one of them fails, no time was spent on the large ones.
    chosen.sort_by_key(|file| (weights(file), file.path != "config.json", file.path.clone()));
    Ok(Choice { name: None, files: chosen, others: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<RepoFile> {
        let file = |(at, path): (usize, &&str)| RepoFile { path: (*path).to_owned(), size: Some(at as u64) };
        paths.iter().enumerate().map(file).collect()
    }

    fn chosen(paths: &[&str], wanted: Option<&str>) -> Vec<String> {
        let choice = choose(&files(paths), wanted).unwrap();
        choice.files.into_iter().map(|file| file.path).collect()
    }

    const REPO: [&str; 8] = [
        "README.md",
        "m-F16.gguf",
        "m-Q8_0.gguf",
        "m-Q4_K_S.gguf",
        "m-Q4_K_M.gguf",
        "mmproj-m-Q4_K_M.gguf",
        "m.imatrix.gguf",
        "m-IQ2_XS.gguf",
    ];

    #[test]
    fn the_usual_mix_comes_first() {
        assert_eq!(chosen(&REPO, None), ["m-Q4_K_M.gguf"]);
        let others = choose(&files(&REPO), None).unwrap().others;
        assert_eq!(others, ["m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_S.gguf", "m-IQ2_XS.gguf"]);
        assert_eq!(chosen(&["a.q8_0.gguf", "a.q4_k_m.gguf"], None), ["a.q4_k_m.gguf"]);
        assert_eq!(chosen(&["a-f16.gguf", "a-q8_0.gguf"], None), ["a-q8_0.gguf"]);
        // The smallest one if the names do not contain a type.
        assert_eq!(chosen(&["a.gguf", "b.gguf"], None), ["a.gguf"]);
    }

    #[test]
    fn a_type_or_a_name_may_be_asked_for() {
        assert_eq!(chosen(&REPO, Some("Q8_0")), ["m-Q8_0.gguf"]);
        assert_eq!(chosen(&REPO, Some("m-F16.gguf")), ["m-F16.gguf"]);
        assert_eq!(chosen(&REPO, Some("README.md")), ["README.md"]);
        let error = choose(&files(&REPO), Some("Q5_K_M")).unwrap_err().to_string();
        assert!(error.contains("no file \"Q5_K_M\"; available: m-F16.gguf, m-Q8_0.gguf"), "{error}");
        assert!(matches!(choose(&files(&REPO), Some("q4_k_m")), Err(ChooseError::Several { .. })));
        // `Q4_K` does not match `Q4_K_M`.
        assert!(matches!(choose(&files(&REPO), Some("Q4_K")), Err(ChooseError::NoFile { .. })));
    }

    #[test]
    fn names_tell_the_type() {
        let types = [
            ("m-q4_k_m.gguf", Some("Q4_K_M")),
            ("sub/Qwen3.5-9B.IQ2_XS.gguf", Some("IQ2_XS")),
            ("m-UD-Q4_K_XL-00001-of-00002.gguf", Some("Q4_K_XL")),
            ("m-BF16.gguf", Some("BF16")),
            ("qwen-3.gguf", None),
            ("model.gguf", None),
        ];
        for (name, expected) in types {
            assert_eq!(quantization(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn parts_come_together() {
        let repo = ["q/x-Q8_0-00002-of-00002.gguf", "y.gguf", "q/x-Q8_0-00001-of-00002.gguf"];
        let shards = ["q/x-Q8_0-00001-of-00002.gguf", "q/x-Q8_0-00002-of-00002.gguf"];
        for wanted in [None, Some("Q8_0"), Some(repo[0])] {
            assert_eq!(chosen(&repo, wanted), shards, "{wanted:?}");
        }
        let error = choose(&files(&["x-00001-of-00003.gguf", "x-00003-of-00003.gguf"]), None).unwrap_err();
        assert_eq!(error.to_string(), "x-00001-of-00003.gguf is split into 3 files, but file 2 is missing");
        // Invalid shard numbers are ordinary names.
        assert_eq!(chosen(&["x-00003-of-00002.gguf"], None), ["x-00003-of-00002.gguf"]);
    }

    #[test]
    fn without_gguf_it_is_the_folder() {
        let repo = [
            "model-00001-of-00002.safetensors",
            "config.json",
            "tokenizer.json",
            "model-00002-of-00002.safetensors",
            "README.md",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "sub/config.json",
            "pytorch_model.bin",
        ];
        let expected = [
            "config.json",
            "model.safetensors.index.json",
            "tokenizer.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(chosen(&repo, None), expected);
        let error = choose(&files(&repo[1..]), None).unwrap_err().to_string();
        assert_eq!(error, "model.safetensors is split into 2 files, but file 1 is missing");
        let error = choose(&files(&["README.md", "pytorch_model.bin"]), None).unwrap_err().to_string();
        assert!(error.contains("no GGUF file") && error.contains("pytorch_model.bin"), "{error}");
        assert!(choose(&[], None).unwrap_err().to_string().ends_with("it contains no files"));
    }

    #[test]
    fn sixty_thousand_names_take_no_longer_than_they_must() {
        let start = std::time::Instant::now();
        let single: Vec<String> = (0..60_000).map(|at| format!("model-{at}-Q4_K_M.gguf")).collect();
        let names: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(chosen(&names, None), ["model-0-Q4_K_M.gguf"]);
        let error = choose(&files(&names), Some("Q4_K_M")).unwrap_err().to_string();
        assert!(error.len() < 1000 && error.ends_with("and 59980 more"), "{error}");
        let shards: Vec<String> = (1..=60_000).map(|at| format!("m-{at:05}-of-60000.gguf")).collect();
        let names: Vec<&str> = shards.iter().map(String::as_str).collect();
        assert_eq!(chosen(&names, None).len(), 60_000);
        assert!(choose(&files(&names[..59_999]), None).unwrap_err().to_string().contains("file 60000 is"));
        // In pairs these would be 1.8 billion comparisons, which take minutes.
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn paths_that_leave_the_folder_are_no_files() {
        assert!(choose(&files(&["../../x-Q4_K_M.gguf", "/y.gguf"]), None).is_err());
    }
}
