//! The CPU backend as a plain WebAssembly module.
//!
//! The host allocates room in the module's memory ([`fulmen_alloc`]), copies a GGUF file and a prompt there,
//! calls [`fulmen_generate`], and reads the answer, which is JSON, from [`fulmen_answer`] on. On other
//! targets the same functions are an ordinary library, and [`generate`] is what the tests call.

use std::cell::RefCell;
use std::sync::Arc;

use fulmen::model::{LoadOptions, ModelError};
use fulmen::prelude::*;
use serde::{Deserialize, Serialize};

/// What was generated.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Answer {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
}

/// Loads a model from the bytes of a GGUF file onto the CPU and continues a prompt greedily.
///
/// # Errors
/// If the file is not a model that can run here, or if the run fails.
pub fn generate(model: Vec<u8>, prompt: &str, max_tokens: usize) -> Result<Answer, ModelError> {
    let device = Box::new(CpuDispatcher::new());
    let model = Model::from_bytes(Arc::new(model), device, LoadOptions::default())?;
    let options = GenerateOptions { max_tokens, ..GenerateOptions::default() };
    let generated = model.generate(prompt, &options, |_| ())?;
    Ok(Answer { tokens: generated.tokens, text: generated.text })
}

thread_local! {
    /// The last answer, until the next call.
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Allocates `len` bytes for the host to fill; null if there is no room. [`fulmen_generate`] takes them over.
#[unsafe(no_mangle)]
pub extern "C" fn fulmen_alloc(len: usize) -> *mut u8 {
    let mut bytes = Vec::<u8>::new();
    if bytes.try_reserve_exact(len).is_err() {
        return std::ptr::null_mut();
    }
    bytes.resize(len, 0);
    // A boxed slice has the length as its capacity, which `take` relies on.
    Box::into_raw(bytes.into_boxed_slice()).cast()
}

/// Takes back what [`fulmen_alloc`] gave out.
///
/// # Safety
/// `ptr` must come from `fulmen_alloc(len)` and must not be used again.
unsafe fn take(ptr: *mut u8, len: usize) -> Vec<u8> {
    // SAFETY: the caller says that it is the box that `fulmen_alloc` leaked, with the same length.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(ptr, len)) }.into_vec()
}

/// Continues a prompt with a model and returns the length of the answer: JSON with `tokens` and `text`, or
/// with `error`.
///
/// # Safety
/// `model` and `prompt` must come from [`fulmen_alloc`] with these lengths and must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fulmen_generate(
    model: *mut u8,
    model_len: usize,
    prompt: *mut u8,
    prompt_len: usize,
    max_tokens: usize,
) -> usize {
    #[cfg(all(target_family = "wasm", target_os = "unknown"))]
    host::install();
    // SAFETY: as the caller promises.
    let (model, prompt) = unsafe { (take(model, model_len), take(prompt, prompt_len)) };
    let answer = match String::from_utf8(prompt) {
        Ok(prompt) => generate(model, &prompt, max_tokens).map_err(|error| error.to_string()),
        Err(error) => Err(format!("the prompt is not UTF-8: {error}")),
    };
    let json = match answer {
        Ok(answer) => serde_json::to_vec(&answer),
        Err(error) => serde_json::to_vec(&serde_json::json!({ "error": error })),
    };
    // Strings and integers always serialize.
    let json = json.unwrap_or_default();
    ANSWER.with_borrow_mut(|answer| *answer = json);
    ANSWER.with_borrow(Vec::len)
}

/// Where the last answer lies; valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn fulmen_answer() -> *const u8 {
    ANSWER.with_borrow(Vec::as_ptr)
}

/// What the host gives to the module: a clock, and a place for the message of a panic.
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod host {
    #[link(wasm_import_module = "host")]
    unsafe extern "C" {
        safe fn now() -> f64;
        fn log(text: *const u8, len: usize);
    }

    pub(super) fn install() {
        fulmen::core::clock::set_clock(|| now());
        std::panic::set_hook(Box::new(|panic| {
            let text = panic.to_string();
            // SAFETY: the host reads `len` bytes at `text`, which live until it returns.
            unsafe { log(text.as_ptr(), text.len()) };
        }));
    }
}
