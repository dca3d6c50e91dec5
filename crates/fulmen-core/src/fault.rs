//! What kernels report: a token, a position or a parameter in device memory that is out of range.
//!
//! Only kernels see such a number. They never use it: they put it into a record of four words, the first of which is 0 where
//! nothing was reported, and the host looks at it when it waits. The numbers of the kinds are those in the backends' kernels.

use crate::BackendError;
use crate::sampling::SamplingError;

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
