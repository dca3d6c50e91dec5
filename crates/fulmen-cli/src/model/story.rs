//! The model that is part of the program: small, for a first try.

use fulmen_core::SharedBytes;

/// Its file, if it was there when the program was built. The bytes are used where they are.
pub(crate) fn story() -> Option<SharedBytes> {
    #[cfg(story)]
    {
        /// At an address that every type of number can have.
        #[repr(C, align(64))]
        struct Aligned<T: ?Sized>(T);
        static STORY: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("FULMEN_STORY_FILE")));
        Some(std::sync::Arc::new(&STORY.0))
    }
    #[cfg(not(story))]
    None
}
