//! Fulmen.
