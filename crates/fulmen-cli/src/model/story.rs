//! The model that is part of the program: small, for a first try. `tools/demo-model` makes it.

use std::sync::Arc;

use fulmen_core::SharedBytes;

/// At an address that every type of number can have.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static STORY: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/story.gguf"));

// What a binary should carry at most.
const _: () = assert!(include_bytes!("../../assets/story.gguf").len() <= 5 << 20);

/// Its file. The bytes are used where they are.
pub(crate) fn story() -> SharedBytes {
    Arc::new(&STORY.0)
}
