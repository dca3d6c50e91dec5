//! The metadata of a model: key-value pairs with typed getters.

use std::collections::{HashMap, TryReserveError};

use super::array::{Array, Number, Numbers, Strings};
use super::value::{Value, ValueType};

/// Why the value of a key cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// A missing key.
    #[error("metadata key {key:?} is missing (expected {expected})")]
    Missing {
        /// The key.
        key: String,
        /// The expected type.
        expected: &'static str,
    },
    /// A value of the wrong type.
    #[error("metadata key {key:?} must be {expected}, is {found}")]
    Type {
        /// The key.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// The actual type.
        found: String,
    },
    /// There is not enough memory for a list.
    #[error("not enough memory for the {count} items of metadata key {key:?}")]
    Memory {
        /// The key.
        key: String,
        /// Number of items.
        count: usize,
    },
    /// An integer outside the range of the requested type.
    #[error("metadata key {key:?} must fit into {expected}, is {found}")]
    Range {
        /// The key.
        key: String,
        /// The requested type.
        expected: &'static str,
        /// The number.
        found: i128,
    },
}

/// Keys and values in file order. Keys are unique.
///
/// Integer getters accept any integer type whose value fits into the requested type, because tools differ in
/// what they write; all other getters require their exact type.
///
/// ```
/// use fulmen_model::gguf::Metadata;
/// let mut metadata = Metadata::new();
/// metadata.set("llama.block_count", 16u32);
/// assert_eq!(metadata.u32("llama.block_count"), Ok(16));
/// assert_eq!(metadata.opt_f32("llama.rope.freq_base"), Ok(None));
/// let error = metadata.string("llama.block_count").unwrap_err().to_string();
/// assert_eq!(error, r#"metadata key "llama.block_count" must be string, is u32"#);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Empty metadata.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Sets a key. A new key is appended; an existing one keeps its position.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.index.get(&key) {
            Some(&at) => self.entries[at].1 = value,
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
    }

    /// Makes room for more keys.
    pub(crate) fn try_reserve(&mut self, keys: usize) -> Result<(), TryReserveError> {
        self.entries.try_reserve(keys)?;
        self.index.try_reserve(keys)
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        let (_, value) = self.entries.remove(at);
        for place in self.index.values_mut().filter(|place| **place > at) {
            *place -= 1;
        }
        Some(value)
    }

    /// The keys and values, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    fn take<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || MetadataError::Type { key: key.to_owned(), expected, found: value.type_words() };
        take(value).map(Some).ok_or_else(wrong)
    }

    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<T>, MetadataError> {
        let Some(found) = self.take(key, expected, Value::as_integer)? else { return Ok(None) };
        let wrong = || MetadataError::Range { key: key.to_owned(), expected, found };
        T::try_from(found).map(Some).map_err(|_| wrong())
    }

    /// The array of a key.
    pub fn array(&self, key: &str) -> Result<&Array, MetadataError> {
        let array = self.take(key, "array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        });
        required(key, "array", array)
    }

    /// The strings of an array key, without copying.
    pub fn strings(&self, key: &str) -> Result<Strings<'_>, MetadataError> {
        required(key, STRINGS, self.opt_strings(key))
    }

    /// The strings of an array key that may be missing.
    pub fn opt_strings(&self, key: &str) -> Result<Option<Strings<'_>>, MetadataError> {
        self.take(key, STRINGS, |value| match value {
            Value::Array(array) => array.as_strings(),
            _ => None,
        })
    }

    /// The numbers of an array key of exactly this type, without copying:
    /// `metadata.numbers::<f32>("tokenizer.ggml.scores")`.
    pub fn numbers<T: Number>(&self, key: &str) -> Result<Numbers<'_, T>, MetadataError> {
        required(key, numbers_words(T::TYPE), self.opt_numbers(key))
    }

    /// The numbers of an array key that may be missing.
    pub fn opt_numbers<T: Number>(&self, key: &str) -> Result<Option<Numbers<'_, T>>, MetadataError> {
        self.take(key, numbers_words(T::TYPE), |value| match value {
            Value::Array(array) => array.as_numbers(),
            _ => None,
        })
    }

    /// The integers of an array key of any integer type; each must fit into `i64`.
    pub fn integers(&self, key: &str) -> Result<Vec<i64>, MetadataError> {
        required(key, INTEGERS, self.opt_integers(key))
    }

    /// The integers of an array key that may be missing.
    pub fn opt_integers(&self, key: &str) -> Result<Option<Vec<i64>>, MetadataError> {
        let numbers = self.take(key, INTEGERS, |value| match value {
            Value::Array(array) => array.as_integers(),
            _ => None,
        })?;
        let Some(numbers) = numbers else { return Ok(None) };
        let wrong = |found| MetadataError::Range { key: key.to_owned(), expected: "i64", found };
        let mut list = Vec::new();
        let no_memory = |_| MetadataError::Memory { key: key.to_owned(), count: numbers.len() };
        list.try_reserve_exact(numbers.len()).map_err(no_memory)?;
        for number in numbers {
            list.push(i64::try_from(number).map_err(|_| wrong(number))?);
        }
        Ok(Some(list))
    }
}

const STRINGS: &str = "array of string";
const INTEGERS: &str = "array of integers";

fn required<T>(
    key: &str,
    expected: &'static str,
    value: Result<Option<T>, MetadataError>,
) -> Result<T, MetadataError> {
    value?.ok_or_else(|| MetadataError::Missing { key: key.to_owned(), expected })
}

fn numbers_words(of: ValueType) -> &'static str {
    match of {
        ValueType::U8 => "array of u8",
        ValueType::I8 => "array of i8",
        ValueType::U16 => "array of u16",
        ValueType::I16 => "array of i16",
        ValueType::U32 => "array of u32",
        ValueType::I32 => "array of i32",
        ValueType::F32 => "array of f32",
        ValueType::Bool => "array of bool",
        ValueType::U64 => "array of u64",
        ValueType::I64 => "array of i64",
        ValueType::F64 => "array of f64",
        ValueType::String => STRINGS,
        ValueType::Array => "array",
    }
}

/// A getter and its optional variant.
macro_rules! getters {
    ($($name:ident, $opt:ident, $type:ty, $words:literal, $self:ident, $key:ident => $take:expr;)*) => {
        impl Metadata {$(
            #[doc = concat!("The ", $words, " of a key.")]
            pub fn $name(&self, key: &str) -> Result<$type, MetadataError> {
                required(key, $words, self.$opt(key))
            }

            #[doc = concat!("The ", $words, " of a key that may be missing.")]
            pub fn $opt(&$self, $key: &str) -> Result<Option<$type>, MetadataError> {
                $take
            }
        )*}
    };
}
getters! {
    u32, opt_u32, u32, "u32", self, key => self.integer(key, "u32");
    u64, opt_u64, u64, "u64", self, key => self.integer(key, "u64");
    i64, opt_i64, i64, "i64", self, key => self.integer(key, "i64");
    f32, opt_f32, f32, "f32", self, key => self.take(key, "f32", |value| match *value {
        Value::F32(number) => Some(number),
        _ => None,
    });
    bool, opt_bool, bool, "bool", self, key => self.take(key, "bool", |value| match *value {
        Value::Bool(flag) => Some(flag),
        _ => None,
    });
    string, opt_string, &str, "string", self, key => self.take(key, "string", |value| match value {
        Value::String(text) => Some(text.as_str()),
        _ => None,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("a", 5i64);
        metadata.set("b", -1i32);
        metadata.set("words", Array::strings(["x", "y"]));
        metadata.set("ids", Array::numbers(&[3i32, -4]));
        metadata.set("scores", Array::numbers(&[0.5f32]));
        metadata.set("flag", true);
        metadata.set("big", Array::numbers(&[u64::MAX]));
        metadata
    }

    #[test]
    fn integers_of_other_types_are_accepted_if_they_fit() {
        let metadata = sample();
        assert_eq!(metadata.u32("a"), Ok(5));
        assert_eq!(metadata.i64("b"), Ok(-1));
        let message = metadata.u32("b").unwrap_err().to_string();
        assert_eq!(message, r#"metadata key "b" must fit into u32, is -1"#);
        assert_eq!(metadata.integers("ids"), Ok(vec![3, -4]));
        let message = metadata.integers("big").unwrap_err().to_string();
        assert_eq!(message, r#"metadata key "big" must fit into i64, is 18446744073709551615"#);
    }

    #[test]
    fn errors_name_key_expected_and_found() {
        let metadata = sample();
        let message = |error: MetadataError| error.to_string();
        assert_eq!(message(metadata.u32("c").unwrap_err()), r#"metadata key "c" is missing (expected u32)"#);
        assert_eq!(message(metadata.f32("a").unwrap_err()), r#"metadata key "a" must be f32, is i64"#);
        assert_eq!(
            message(metadata.strings("ids").unwrap_err()),
            r#"metadata key "ids" must be array of string, is array of i32"#
        );
        assert_eq!(
            message(metadata.numbers::<f32>("words").unwrap_err()),
            r#"metadata key "words" must be array of f32, is array of string"#
        );
        assert_eq!(
            message(metadata.array("flag").unwrap_err()),
            r#"metadata key "flag" must be array, is bool"#
        );
        assert_eq!(metadata.opt_strings("none").unwrap().map(Iterator::count), None);
        assert!(metadata.opt_bool("a").is_err(), "an optional key of the wrong type is no missing key");
    }

    #[test]
    fn keys_keep_their_order_and_their_index() {
        let mut metadata = sample();
        metadata.set("b", 7u32);
        assert_eq!(metadata.remove("a"), Some(Value::I64(5)));
        assert_eq!(metadata.remove("a"), None);
        let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["b", "words", "ids", "scores", "flag", "big"]);
        assert_eq!(metadata.u32("b"), Ok(7));
        assert_eq!(metadata.bool("flag"), Ok(true));
        assert_eq!(metadata.numbers::<f32>("scores").unwrap().collect::<Vec<_>>(), [0.5]);
    }
}
