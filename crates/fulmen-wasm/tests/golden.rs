//! The golden tokens that `scripts/check-wasm` expects of the WebAssembly module, on this target.

use fulmen_wasm::{Answer, fulmen_alloc, fulmen_answer, fulmen_generate, generate};

const MODEL: &[u8] = include_bytes!("../../fulmen-cli/assets/story.gguf");
const GOLDEN: &str = include_str!("golden.json");

#[test]
fn this_target_gives_the_golden_tokens() {
    let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    let expected: Answer = serde_json::from_str(GOLDEN).unwrap();
    assert_eq!(expected.tokens.len(), 16);
    let answer = generate(MODEL.to_vec(), golden["prompt"].as_str().unwrap(), 16).unwrap();
    assert_eq!(answer, expected);
}

#[test]
fn a_host_gets_answers_and_errors_as_json() {
    let call = |model: &[u8], prompt: &[u8]| -> serde_json::Value {
        let give = |bytes: &[u8]| {
            let at = fulmen_alloc(bytes.len());
            // SAFETY: `fulmen_alloc` gave room for these bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
            (at, bytes.len())
        };
        let ((model, model_len), (prompt, prompt_len)) = (give(model), give(prompt));
        // SAFETY: both were just allocated with these lengths and are not used again.
        let len = unsafe { fulmen_generate(model, model_len, prompt, prompt_len, 2) };
        // SAFETY: the answer has this length and lives until the next call.
        let json = unsafe { std::slice::from_raw_parts(fulmen_answer(), len) };
        serde_json::from_slice(json).unwrap()
    };
    for wrong in [&[][..], &MODEL[..1000], b"GGUF"] {
        assert!(call(wrong, b"Once").get("error").is_some());
    }
    let error = call(MODEL, b"\xff")["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("the prompt is not UTF-8"), "{error}");
    assert_eq!(call(MODEL, b"Once upon a time")["tokens"].as_array().unwrap().len(), 2);
}
