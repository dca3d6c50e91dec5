//! Builds GGUF files byte by byte, so that any byte can be wrong.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::sync::Arc;

use fulmen_model::gguf::{GgufError, GgufFile};

/// A GGUF file under construction. The defaults are valid; tests change one thing.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) key_count: Option<u64>,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<Vec<u8>>,
    pub(crate) alignment: usize,
    pub(crate) data: Vec<u8>,
}

impl Default for Raw {
    fn default() -> Raw {
        Raw {
            magic: *b"GGUF",
            version: 3,
            key_count: None,
            tensor_count: None,
            keys: vec![key("general.architecture", 8, &text("test"))],
            tensors: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }
}

impl Raw {
    pub(crate) fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Raw {
        self.keys.push(key(name, kind, value));
        self
    }

    /// A tensor entry, without its data.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Raw {
        self.tensors.push(tensor(name, dims, kind, offset));
        self
    }

    pub(crate) fn data(mut self, bytes: usize) -> Raw {
        self.data = (0..bytes).map(|i| (i % 251) as u8).collect();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.tensors).for_each(|entry| out.extend(entry));
        if !self.data.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&self.data);
        }
        out
    }

    pub(crate) fn open(&self) -> Result<GgufFile, GgufError> {
        open(self.bytes())
    }

    /// The error for a file that is rejected.
    pub(crate) fn message(&self) -> String {
        message(self.bytes())
    }
}

pub(crate) fn open(bytes: Vec<u8>) -> Result<GgufFile, GgufError> {
    GgufFile::from_bytes(Arc::new(bytes))
}

/// The error for bytes that are rejected.
pub(crate) fn message(bytes: Vec<u8>) -> String {
    match open(bytes) {
        Ok(file) => panic!("accepted: {file:?}"),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

pub(crate) fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    let mut out = text(name);
    out.extend(kind.to_le_bytes());
    out.extend(value);
    out
}

/// An array value: item type, count, bytes.
pub(crate) fn array(item: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = item.to_le_bytes().to_vec();
    out.extend(count.to_le_bytes());
    out.extend(bytes);
    out
}

pub(crate) fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name);
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}
