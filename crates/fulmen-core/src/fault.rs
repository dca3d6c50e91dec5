//! Faults that kernels report: a token, position, sequence, page or sampling parameter in device memory that
//! is out of range.
//!
//! Only a kernel sees such a value. It skips the access and writes a fault record of four words `[kind, row,
//! value, limit]`; kind 0 means no fault. The host checks the record when it synchronizes. The kinds are the
//! same constants as in the backends' kernels.

use crate::BackendError;
use crate::sampling::SamplingError;

/// The error that a fault record stands for; `None` if the record is empty.
pub fn fault(record: [u32; 4]) -> Option<BackendError> {
    let [kind, row, value, limit] = record;
    let (row, number) = (row as usize, f32::from_bits(value));
    let index = |what| BackendError::Index { what, row, value, limit };
    let parameter =
        |what, error: SamplingError| BackendError::Parameter { what, row, detail: error.to_string() };
    let state = |error| parameter("the sampling state", error);
    let bias = |error| parameter("the logit edits", error);
    let penalty = |name| parameter("the penalties", SamplingError::Penalty { name, value: number });
    Some(match kind {
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
        10 => index("the page"),
        11 => index("the sampling slot"),
        12 => bias(SamplingError::Bias { token: limit, value: number }),
        13 => bias(SamplingError::Biases { count: value, capacity: limit }),
        14 => index("the expert"),
        _ => index("a value of an unknown kind"),
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
        let bias = fault([12, 1, f32::NAN.to_bits(), 7]).unwrap().to_string();
        assert!(bias.starts_with("the logit edits of row 1: the logit bias of token 7"), "{bias}");
    }
}
