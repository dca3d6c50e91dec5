//! The angles: frequencies as fixed-point numbers, so that a position times a frequency loses nothing.

use std::f64::consts::TAU;

use fulmen_core::{RopePairing, RopeSpec};

use crate::kernels::{KernelError, bind::invalid, template::expand};

/// Refuses rotations that kernels cannot make.
pub(crate) fn check(op: &'static str, rope: &RopeSpec, head_dim: u32) -> Result<(), KernelError> {
    let RopeSpec { n_rot, base, freq_scale, magnitude, .. } = *rope;
    if !n_rot.is_multiple_of(2) || n_rot > head_dim {
        return Err(invalid(op, format!("{n_rot} elements of a head of {head_dim} cannot turn in pairs")));
    }
    // Up to 127 turns for each position have room before the point.
    let numbers = base >= 1.0 && base.is_finite() && (0.0..=128.0).contains(&freq_scale);
    if !numbers || !magnitude.is_finite() {
        return Err(invalid(
            op,
            format!(
                "a base of {base}, a scale of {freq_scale} and a magnitude of {magnitude} are out of range"
            ),
        ));
    }
    Ok(())
}

/// Where the elements of pair `item` lie in a head.
pub(crate) fn first_and_second(rope: &RopeSpec, item: &str) -> (String, String) {
    match rope.pairing {
        RopePairing::Interleaved => (format!("2u * {item}"), format!("2u * {item} + 1u")),
        RopePairing::NeoX => (item.to_owned(), format!("{item} + {}u", rope.n_rot / 2)),
    }
}

/// `turn_of(position, i)`. With `factors`, that array is declared.
pub(crate) fn turn_text(rope: &RopeSpec, factors: bool) -> String {
    let pairs = rope.n_rot / 2;
    if pairs == 0 {
        return "fn turn_of(position: u32, i: u32) -> vec2<f32> { return vec2<f32>(1.0, 0.0); }\n".to_owned();
    }
    // A frequency is the product of two from short tables: of every eighth pair, and of the eight after it.
    let power = |i: u32| f64::from(rope.base).powf(-2.0 * f64::from(i) / f64::from(rope.n_rot));
    let high =
        (0..pairs.div_ceil(8)).map(|i| power(8 * i) * f64::from(rope.freq_scale) / TAU * 2f64.powi(56));
    let low = (0..pairs.min(8)).map(|i| power(i) * 2f64.powi(64));
    let tables = [table("a", "high", high), table("b", "low", low)].concat();
    let factors = factors && pairs > 0;
    expand(
        include_str!("turn.wgsl"),
        &[
            ("tables", &tables),
            ("divide", if factors { include_str!("divide.wgsl") } else { "" }),
            ("frequency", if factors { "divided(frequency_of(i), factors[i])" } else { "frequency_of(i)" }),
            ("magnitude", &format!("{:e}", rope.magnitude)),
        ],
    )
}

/// Chooses one of some 64-bit numbers by an index.
fn table(name: &str, index: &str, numbers: impl Iterator<Item = f64>) -> String {
    let mut text = String::new();
    for (i, number) in numbers.enumerate() {
        // Saturates, where 1 would need a 65th bit.
        let bits = number as u64;
        let pair = format!("vec2<u32>({}u, {}u)", bits & 0xffff_ffff, bits >> 32);
        text += &if i == 0 {
            format!("    var {name} = {pair};\n")
        } else {
            format!("    {name} = select({name}, {pair}, {index} == {i}u);\n")
        };
    }
    text
}
