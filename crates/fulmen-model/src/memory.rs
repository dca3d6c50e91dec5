//! Collections whose size comes from a file: an allocation that fails is an error, not the end of the
//! process.

use std::collections::{HashMap, TryReserveError};
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Appends an item.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), TryReserveError> {
    list.try_reserve(1)?;
    list.push(item);
    Ok(())
}

/// The items as a list.
pub(crate) fn collect<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>, TryReserveError> {
    let items = items.into_iter();
    let mut list = Vec::new();
    list.try_reserve_exact(items.size_hint().0)?;
    for item in items {
        push(&mut list, item)?;
    }
    Ok(list)
}

/// A copy of a text.
pub(crate) fn text(text: &str) -> Result<String, TryReserveError> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())?;
    copy.push_str(text);
    Ok(copy)
}

/// A copy of a list.
pub(crate) fn copy<T: Clone>(items: &[T]) -> Result<Vec<T>, TryReserveError> {
    collect(items.iter().cloned())
}

/// A list of `count` equal items.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, TryReserveError> {
    let mut list = Vec::new();
    list.try_reserve_exact(count)?;
    list.resize(count, value);
    Ok(list)
}

/// A list from a file.
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        struct Collect<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Collect<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<List<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    push(&mut list, item).map_err(A::Error::custom)?;
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_seq(Collect(PhantomData))
    }
}

/// Keys and values from a file; of equal keys the last counts.
pub(crate) struct Table<K, V>(pub(crate) HashMap<K, V>);

impl<'de, K: Deserialize<'de> + Eq + Hash, V: Deserialize<'de>> Deserialize<'de> for Table<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Table<K, V>, D::Error> {
        struct Collect<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Deserialize<'de> + Eq + Hash, V: Deserialize<'de>> Visitor<'de> for Collect<K, V> {
            type Value = Table<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Table<K, V>, A::Error> {
                let mut table = HashMap::new();
                while let Some((key, value)) = entries.next_entry()? {
                    table.try_reserve(1).map_err(A::Error::custom)?;
                    table.insert(key, value);
                }
                Ok(Table(table))
            }
        }
        deserializer.deserialize_map(Collect(PhantomData))
    }
}
