//! How models on several devices are compared with the same on one.

use fulmen_engine::{Model, Session};

/// All logits of a prefill in several chunks, and of tokens that are fed one by one.
#[allow(dead_code, reason = "each test binary uses a part of this")]
pub(crate) fn logits(model: &Model) -> Vec<f32> {
    logits_of(&mut model.session().unwrap())
}

/// The same of a session with three sequences.
pub(crate) fn logits_of(session: &mut Session) -> Vec<f32> {
    let prompt: Vec<u32> = (0..19).map(|i| (i * 37 + 5) % 101).collect();
    let mut all = Vec::new();
    session.logits_of_each(1, &prompt, 0, |_, rows| all.extend_from_slice(rows)).unwrap();
    for token in [3, 99, 0] {
        all.extend(session.logits(1, &[token]).unwrap());
    }
    all.extend(session.hidden(2, &prompt).unwrap());
    all
}

/// The mean squared error, as a part of the mean square of what is expected.
pub(crate) fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let error: f64 = pairs.clone().map(|(a, b)| (a - b).powi(2)).sum();
    error / pairs.map(|(_, b)| b * b).sum::<f64>()
}
