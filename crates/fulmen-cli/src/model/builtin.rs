//! The small built-in model, which tells stories. `tools/demo-model` trains it.

use std::sync::Arc;

use fulmen_core::SharedBytes;

/// Aligned for every element type.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/story.gguf"));

// Keeps the binary small.
const _: () = assert!(include_bytes!("../../assets/story.gguf").len() <= 5 << 20);

/// Its GGUF file, without a copy.
pub(crate) fn builtin_model() -> SharedBytes {
    Arc::new(&MODEL.0)
}
