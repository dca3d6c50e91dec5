//! The model that is part of the program, if it was built in; else what is said without one.
//!
//! `FULMEN_STORY=/path/of/any.gguf cargo test -p fulmen-cli --test story` tries it with another model of at most 5 MiB, such as one
//! of `fulmen synth tiny-llama`.

mod common;

use common::{fulmen, output};

#[test]
fn without_a_model_it_is_the_one_that_is_built_in() {
    let run = |args: &[&str]| output(fulmen(args).stdin(std::process::Stdio::null()));
    if !cfg!(story) {
        for args in [&["run", "-p", "Hi"][..], &["chat"], &["bench", "model"]] {
            let (stdout, stderr, code) = run(args);
            assert_eq!((stdout.as_str(), code), ("", Some(1)), "{stderr}");
            assert!(stderr.contains("no model given") && stderr.contains("fulmen pull"), "{stderr}");
        }
        return;
    }
    let options = ["-n", "5", "--seed", "1", "--device", "cpu", "--quiet", "--raw"];
    let (expected, stderr, code) = run(&[&["run", "-p", "Once upon a time"][..], &options].concat());
    assert!(code == Some(0) && expected.len() > 3, "{stderr}");
    // One word alone that is no model is a prompt.
    let (alone, ..) = run(&[&["run", "Once upon a time"][..], &options].concat());
    assert_eq!(alone, expected);
    let (_, stderr, code) = run(&["run", "missing.gguf", "-p", "Hi"]);
    assert!(code == Some(1) && stderr.contains("missing.gguf"), "{stderr}");
    let (_, stderr, code) = run(&["bench", "model", "--pp", "4", "--tg", "2", "-r", "1", "--device", "cpu"]);
    assert_eq!(code, Some(0), "{stderr}");
}
