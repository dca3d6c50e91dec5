//! Metadata values and their types.

use std::fmt;

use super::array::Array;

/// The type of a metadata value, with its number in the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// 32-bit float.
    F32,
    /// A byte that is 0 or 1.
    Bool,
    /// UTF-8 string.
    String,
    /// Array of values of one type.
    Array,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// 64-bit float.
    F64,
}

/// One row per type, in numerical order: name and size in bytes (`None` if variable).
const TYPES: [(ValueType, &str, Option<usize>); 13] = [
    (ValueType::U8, "u8", Some(1)),
    (ValueType::I8, "i8", Some(1)),
    (ValueType::U16, "u16", Some(2)),
    (ValueType::I16, "i16", Some(2)),
    (ValueType::U32, "u32", Some(4)),
    (ValueType::I32, "i32", Some(4)),
    (ValueType::F32, "f32", Some(4)),
    (ValueType::Bool, "bool", Some(1)),
    (ValueType::String, "string", None),
    (ValueType::Array, "array", None),
    (ValueType::U64, "u64", Some(8)),
    (ValueType::I64, "i64", Some(8)),
    (ValueType::F64, "f64", Some(8)),
];

impl ValueType {
    /// The type with this number.
    pub fn from_number(number: u32) -> Option<ValueType> {
        TYPES.get(usize::try_from(number).ok()?).map(|row| row.0)
    }

    fn row(self) -> (u32, &'static (ValueType, &'static str, Option<usize>)) {
        let found = (0u32..).zip(&TYPES).find(|(_, row)| row.0 == self);
        found.expect("every type has a row")
    }

    /// Its number in the file format.
    pub fn number(self) -> u32 {
        self.row().0
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().1.1
    }

    /// Size of a value in bytes; `None` for strings and arrays.
    pub fn size(self) -> Option<usize> {
        self.row().1.2
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned 8-bit integer.
    U8(u8),
    /// Signed 8-bit integer.
    I8(i8),
    /// Unsigned 16-bit integer.
    U16(u16),
    /// Signed 16-bit integer.
    I16(i16),
    /// Unsigned 32-bit integer.
    U32(u32),
    /// Signed 32-bit integer.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// String.
    String(String),
    /// Array of values of one type.
    Array(Array),
    /// Unsigned 64-bit integer.
    U64(u64),
    /// Signed 64-bit integer.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

impl Value {
    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value, if it is an integer of any type.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(x) => x.into(),
            Value::I8(x) => x.into(),
            Value::U16(x) => x.into(),
            Value::I16(x) => x.into(),
            Value::U32(x) => x.into(),
            Value::I32(x) => x.into(),
            Value::U64(x) => x.into(),
            Value::I64(x) => x.into(),
            _ => return None,
        })
    }

    /// The type for display: `u32`, `array of string`.
    pub fn type_words(&self) -> String {
        match self {
            Value::Array(array) => format!("array of {}", array.item_type()),
            other => other.value_type().to_string(),
        }
    }
}

impl fmt::Display for Value {
    /// The value on one line; arrays are abbreviated.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(x) => write!(f, "{x}"),
            Value::I8(x) => write!(f, "{x}"),
            Value::U16(x) => write!(f, "{x}"),
            Value::I16(x) => write!(f, "{x}"),
            Value::U32(x) => write!(f, "{x}"),
            Value::I32(x) => write!(f, "{x}"),
            Value::F32(x) => write!(f, "{x}"),
            Value::Bool(x) => write!(f, "{x}"),
            Value::String(x) => write!(f, "{x:?}"),
            Value::Array(x) => write!(f, "{x}"),
            Value::U64(x) => write!(f, "{x}"),
            Value::I64(x) => write!(f, "{x}"),
            Value::F64(x) => write!(f, "{x}"),
        }
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Value {
                Value::$variant(value.into())
            }
        }
    )*};
}
from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool, &str => String, String => String, Array => Array);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_numbers_round_trip() {
        for number in 0..13 {
            assert_eq!(ValueType::from_number(number).unwrap().number(), number);
        }
        assert_eq!(ValueType::from_number(13), None);
        assert_eq!(ValueType::from_number(u32::MAX), None);
    }

    #[test]
    fn values_are_displayed_on_one_line() {
        let long: Vec<u32> = (0..9).collect();
        assert_eq!(Value::from(Array::numbers(&long)).to_string(), "[0, 1, 2, 3, … (9 in all)]");
        assert_eq!(Value::from(Array::strings(["a\n"])).to_string(), r#"["a\n"]"#);
        assert_eq!(Value::from(0.5f32).to_string(), "0.5");
        assert_eq!(Value::from(Array::numbers::<f32>(&[])).type_words(), "array of f32");
    }
}
