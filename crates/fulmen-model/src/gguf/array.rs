//! Metadata arrays, decoded on access.

use std::{fmt, marker::PhantomData, ops::Range, sync::Arc};

use super::value::ValueType;

/// A metadata array. It keeps the bytes of the file and decodes items on access, so a vocabulary of 150,000
/// tokens is not copied.
#[derive(Clone)]
pub struct Array {
    item: ValueType,
    len: usize,
    /// The items in file format, validated on construction.
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Array {
    /// An array from validated bytes: `range` contains exactly `len` well-formed items.
    pub(super) fn checked(item: ValueType, len: usize, bytes: Arc<Vec<u8>>, range: Range<usize>) -> Array {
        Array { item, len, bytes, range }
    }

    /// An array of strings.
    pub fn strings<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Array {
        let (mut len, mut bytes) = (0, Vec::new());
        for item in items {
            let text = item.as_ref().as_bytes();
            // A length in memory fits into 64 bits.
            bytes.extend_from_slice(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
            bytes.extend_from_slice(text);
            len += 1;
        }
        let range = 0..bytes.len();
        Array { item: ValueType::String, len, bytes: Arc::new(bytes), range }
    }

    /// An array of numbers.
    pub fn numbers<T: Number>(items: &[T]) -> Array {
        let mut bytes = Vec::with_capacity(size_of_val(items));
        items.iter().for_each(|item| item.push(&mut bytes));
        let range = 0..bytes.len();
        Array { item: T::TYPE, len: items.len(), bytes: Arc::new(bytes), range }
    }

    /// The type of its items.
    pub fn item_type(&self) -> ValueType {
        self.item
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The items in file format.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    /// The items, if they are strings.
    pub fn as_strings(&self) -> Option<Strings<'_>> {
        (self.item == ValueType::String).then(|| Strings { bytes: self.bytes(), left: self.len })
    }

    /// The items, if they are numbers of exactly this type.
    pub fn as_numbers<T: Number>(&self) -> Option<Numbers<'_, T>> {
        (self.item == T::TYPE).then(|| Numbers { bytes: self.bytes(), of: PhantomData })
    }

    /// The items, if they are integers of any type.
    pub fn as_integers(&self) -> Option<impl ExactSizeIterator<Item = i128>> {
        let decode: fn(&[u8]) -> i128 = match self.item {
            ValueType::U8 => |b| u8::pull(b).into(),
            ValueType::I8 => |b| i8::pull(b).into(),
            ValueType::U16 => |b| u16::pull(b).into(),
            ValueType::I16 => |b| i16::pull(b).into(),
            ValueType::U32 => |b| u32::pull(b).into(),
            ValueType::I32 => |b| i32::pull(b).into(),
            ValueType::U64 => |b| u64::pull(b).into(),
            ValueType::I64 => |b| i64::pull(b).into(),
            _ => return None,
        };
        Some(self.bytes().chunks_exact(self.item.size()?).map(decode))
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Array) -> bool {
        self.item == other.item && self.len == other.len && self.bytes() == other.bytes()
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        let mut list: Vec<String> = match self.item {
            ValueType::F32 => {
                self.as_numbers::<f32>().into_iter().flatten().take(SHOWN).map(|x| x.to_string()).collect()
            }
            ValueType::F64 => {
                self.as_numbers::<f64>().into_iter().flatten().take(SHOWN).map(|x| x.to_string()).collect()
            }
            ValueType::Bool => {
                self.as_numbers::<bool>().into_iter().flatten().take(SHOWN).map(|x| x.to_string()).collect()
            }
            ValueType::String => {
                self.as_strings().into_iter().flatten().take(SHOWN).map(|x| format!("{x:?}")).collect()
            }
            _ => self.as_integers().into_iter().flatten().take(SHOWN).map(|x| x.to_string()).collect(),
        };
        if self.len > SHOWN {
            list.push(format!("… ({} in all)", self.len));
        }
        write!(f, "[{}]", list.join(", "))
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self}", self.item)
    }
}

/// Iterator over the strings of an array.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.checked_sub(1)?;
        // The array was validated on construction, so no `?` ends the iteration early.
        let (length, rest) = self.bytes.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        self.bytes = rest;
        std::str::from_utf8(text).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// Iterator over the numbers of an array.
#[derive(Clone, Debug)]
pub struct Numbers<'a, T> {
    bytes: &'a [u8],
    of: PhantomData<T>,
}

impl<T: Number> Iterator for Numbers<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let (item, rest) = self.bytes.split_at_checked(size_of::<T>())?;
        self.bytes = rest;
        Some(T::pull(item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.bytes.len() / size_of::<T>();
        (left, Some(left))
    }
}

impl<T: Number> ExactSizeIterator for Numbers<'_, T> {}

/// A fixed-size metadata number.
pub trait Number: Copy + sealed::Sealed {
    /// Its type.
    const TYPE: ValueType;
    /// Appends its bytes.
    #[doc(hidden)]
    fn push(self, out: &mut Vec<u8>);
    /// Decodes it from the start of `bytes`, which must be long enough.
    #[doc(hidden)]
    fn pull(bytes: &[u8]) -> Self;
}

mod sealed {
    /// Restricts [`super::Number`] to the types of the format.
    pub trait Sealed {}
}

macro_rules! number {
    ($($type:ty => $variant:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Number for $type {
            const TYPE: ValueType = ValueType::$variant;
            fn push(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn pull(bytes: &[u8]) -> $type {
                bytes.first_chunk().map_or_else(Default::default, |bytes| <$type>::from_le_bytes(*bytes))
            }
        }
    )*};
}
number!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64);

impl sealed::Sealed for bool {}
impl Number for bool {
    const TYPE: ValueType = ValueType::Bool;
    fn push(self, out: &mut Vec<u8>) {
        out.push(self.into());
    }
    fn pull(bytes: &[u8]) -> bool {
        u8::pull(bytes) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_round_trip() {
        let words = ["", "a", "ü", "token"];
        let array = Array::strings(words);
        assert_eq!(array.as_strings().unwrap().collect::<Vec<_>>(), words);
        assert_eq!(array.as_strings().unwrap().len(), 4);
        assert!(array.as_integers().is_none());
        let array = Array::numbers(&[-1i32, 7, i32::MAX]);
        assert_eq!(array.as_numbers::<i32>().unwrap().collect::<Vec<_>>(), [-1, 7, i32::MAX]);
        assert_eq!(array.as_integers().unwrap().collect::<Vec<_>>(), [-1, 7, 2147483647]);
        assert!(array.as_numbers::<u32>().is_none() && array.as_strings().is_none());
        let array = Array::numbers(&[true, false]);
        assert_eq!(array.as_numbers::<bool>().unwrap().collect::<Vec<_>>(), [true, false]);
        assert_eq!(Array::numbers(&[u64::MAX]).as_integers().unwrap().next(), Some(u64::MAX.into()));
    }
}
