//! The small built-in model, which tells stories. `tools/demo-model` trains it.

use std::sync::Arc;

use fulmen::core::SharedBytes;

/// Aligned for every element type.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../assets/story.gguf"));

/// Its GGUF file, without a copy.
pub(crate) fn story_model() -> SharedBytes {
    Arc::new(&MODEL.0)
}
