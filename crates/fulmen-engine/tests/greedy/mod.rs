//! One model on two devices: the same logits, and the same greedy tokens unless a choice is a close call.
//! Backend tests include this file by its path.

use fulmen_engine::Session;

/// A token is certain if the two largest logits differ by more than this multiple of the allowed error: the
/// error of a difference is √2 times that of a logit, and four times that is rare.
const SURE: f64 = 5.7;

fn square_sum(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

/// The squared error relative to the expected values.
pub(crate) fn nmse(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let error = square_sum(got.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    error / square_sum(expected.iter().map(|&b| b.into()))
}

/// The token with the largest logit, and whether logits with an [`nmse`] of `bound` would yield it, too.
fn choice(logits: &[f32], bound: f64) -> (u32, bool) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let margin = f64::from(logits[order[0]]) - f64::from(logits[order[1]]);
    let mean = square_sum(logits.iter().map(|&x| x.into())) / logits.len() as f64;
    (u32::try_from(order[0]).unwrap(), margin > SURE * (bound * mean).sqrt())
}

/// Feeds the prompt to both, compares the logits, and then the greedy tokens. At a close call, the device
/// gets the CPU's token and continues from there. Most steps must not be close calls.
pub(crate) fn compare(
    cpu: &mut Session,
    device: &mut Session,
    prompt: &[u32],
    steps: usize,
    bound: f64,
    what: &str,
) {
    let mut logits = cpu.logits(0, prompt).unwrap();
    let error = nmse(&device.logits(0, prompt).unwrap(), &logits);
    assert!(error <= bound, "{what}: {error:e}");
    let (mut expected, mut sure) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let (token, certain) = choice(&logits, bound);
        expected.push(token);
        sure.push(certain);
        logits = cpu.logits(0, &[token]).unwrap();
    }
    let mut at = 0;
    while at < steps {
        let end = (at..steps).find(|&step| !sure[step]).unwrap_or(steps);
        if end > at {
            let got = device.decode(&[0], end - at).unwrap().remove(0);
            assert_eq!(got, expected[at..end], "{what}, from step {at} on");
        }
        if end < steps {
            device.feed(0, &[expected[end]]).unwrap();
        }
        at = end + 1;
    }
    let compared = sure.iter().filter(|sure| **sure).count();
    println!("{what}: {compared} of {steps} greedy steps compared, the error of the logits is {error:.1e}");
    assert!(2 * compared >= steps, "{what}: {compared} of {steps} steps are no close calls");
}
