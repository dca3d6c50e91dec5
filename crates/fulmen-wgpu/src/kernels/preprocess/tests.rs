use super::*;

fn rendered(text: &str, values: &[(&str, Value)]) -> String {
    File::parse("test.wgsl", text).render(values)
}

#[test]
fn values_become_text() {
    let text = "const A = {{a}}u; // {{a * (b - 1) % 7}} {{t}} {{\"xyzw\"[b]}} {{list[1]}}\n";
    let values = values![a: 12u32, b: 3u32, t: "vec4<f32>", list: vec![4u32, 5]];
    assert_eq!(rendered(text, &values), "const A = 12u; // 3 vec4<f32> w 5\n");
    assert_eq!(rendered("{{t}}", &values![t: "{{a}}"]), "{{a}}", "values are not expanded again");
    assert_eq!(rendered("{{a < 2 ? \"few\" : \"many\"}} {{\"s\" + a}}", &values![a: 3u32]), "many s3");
    assert_eq!(rendered("{{min(a, 2)}} {{max(a, 2)}} {{1 << a}}", &values![a: 3u32]), "2 3 8");
}

#[test]
fn conditions_choose_lines() {
    let text = "#if n == 1\none\n#elif n == 2 && !off\ntwo\n#else\n  many\n#endif\nend\n";
    let of = |n: u32, off: bool| rendered(text, &values![n, off]);
    assert_eq!(of(1, true), "one\nend\n");
    assert_eq!(of(2, false), "two\nend\n");
    assert_eq!(of(2, true), "  many\nend\n");
}

#[test]
fn loops_unroll_with_definitions_of_their_own() {
    let text = "#for i in 0..n\n  #define at i * 4\n  #for j in i..2\ns{{i}}_{{j}} = {{at + j}};\n\
                #endfor\n#endfor\n";
    assert_eq!(rendered(text, &values![n: 2u32]), "s0_0 = 0;\ns0_1 = 1;\ns1_1 = 5;\n");
    assert_eq!(rendered(text, &values![n: 0u32]), "");
}

#[test]
fn macros_take_arguments_and_documentation_is_left_out() {
    let text = "//! About.\n// Kept.\n#macro load(name, at)\nlet {{name}} = b[{{at}}];\n#endmacro\n\
                #expand load(\"x\", \"i + 1u\")\n#expand load(\"y\" + 2, 3)\n";
    let file = File::parse("test.wgsl", text);
    assert_eq!(file.render(&[]), "// Kept.\nlet x = b[i + 1u];\nlet y2 = b[3];\n");
    assert_eq!(file.about, "About.\n");
}

fn message(of: impl FnOnce() -> String + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(of).expect_err("a mistake");
    *panic.downcast::<String>().expect("a message")
}

#[test]
fn mistakes_name_file_and_line() {
    for (text, expected) in [
        ("a\n{{b}}\n", "test.wgsl:2: no value for \"b\""),
        ("#if true\na\n", "test.wgsl:1: there is no #elif or #else or #endif for this"),
        ("\n#endif\n", "test.wgsl:2: unexpected directive #endif"),
        ("\n\n{{1 / 0}}\n", "test.wgsl:3: 1 / 0 has no value"),
        ("#for i in 0..true\n#endfor\n", "test.wgsl:1: expected an integer, got Bool(true)"),
        ("#include \"none.wgsl\"\n", "test.wgsl:1: there is no file \"none.wgsl\" to include"),
        ("#expand none()\n", "test.wgsl:1: there is no macro none"),
        ("{{1 == true}}\n", "test.wgsl:1: Int(1) and Bool(true) cannot be compared"),
    ] {
        assert_eq!(message(|| rendered(text, &[])), expected);
    }
}

#[test]
fn every_kernel_file_is_embedded_and_parses() {
    let kernels = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels");
    let mut found = Vec::new();
    let mut folders = vec![kernels.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "wgsl") {
                let name = path.strip_prefix(&kernels).unwrap();
                found.push(name.to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    found.sort();
    let mut embedded: Vec<_> = files::FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
    embedded.sort();
    assert_eq!(found, embedded, "preprocess/files.rs lists the files under src/kernels");
    assert!(embedded.iter().all(|name| File::named(name).is_some()));
}
