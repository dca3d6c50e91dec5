//! What kernels report: a token, a position or a parameter in device memory that is out of range.
//!
//! Only kernels see such a number. They never use it: they put it into a record of [`FAULT_BYTES`], which is an
//! output of theirs and zero at the start, and the host looks at it when it reads something. The first one stays.

use fulmen_core::BackendError;
use fulmen_core::sampling::SamplingError;

/// Bytes of the record: four words, the first of which is 0 where nothing was reported.
pub const FAULT_BYTES: u64 = 16;

/// What the record says; `None` where nothing was reported.
pub fn fault(record: [u32; 4]) -> Option<BackendError> {
    let [code, row, value, limit] = record;
    let (row, number) = (row as usize, f32::from_bits(value));
    let index = |what| BackendError::Index { what, row, value, limit };
    let parameter =
        |what, error: SamplingError| BackendError::Parameter { what, row, detail: error.to_string() };
    let state = |error| parameter("the sampling state", error);
    let penalty = |name| parameter("the penalties", SamplingError::Penalty { name, value: number });
    Some(match code {
        0 => return None,
        1 => index("the token"),
        2 => index("the position"),
        3 => index("the sequence"),
        4 => state(SamplingError::Temperature(number)),
        5 => state(SamplingError::TopP(number)),
        6 => state(SamplingError::MinP(number)),
        7 => parameter("the penalties", SamplingError::Repeat(number)),
        8 => penalty("frequency"),
        9 => penalty("presence"),
        _ => index("a number of an unknown kind"),
    })
}

/// `report(code, row, value, limit)` and the codes, for kernels that bind `fault`.
pub(super) const REPORT: &str = include_str!("fault.wgsl");

/// The type of the elements of `fault`.
pub(super) const ELEMENT: &str = "atomic<u32>";

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn records_become_errors_that_name_the_row_and_the_number() {
        assert!(fault([0, 1, 2, 3]).is_none());
        let index = fault([2, 3, 64, 64]).unwrap();
        assert_eq!(index.to_string(), "the position of row 3 is 64, but there are only 64");
        let state = fault([4, 1, (-1f32).to_bits(), 0]).unwrap();
        assert!(state.to_string().starts_with("the sampling state of row 1: the temperature"), "{state}");
    }
}
