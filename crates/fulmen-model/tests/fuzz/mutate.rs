//! Accidental and malicious kinds of damage.

use fastrand::Rng;

/// Numbers near which sizes and counts overflow or change their meaning.
const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    12,
    13,
    31,
    32,
    33,
    255,
    256,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    1 << 62,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

/// One to four changes to one of the files.
pub(crate) fn mutated(files: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut bytes = random.choice(files).cloned().unwrap_or_default();
    for _ in 0..random.usize(1..=4) {
        change(&mut bytes, files, random);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, files: &[Vec<u8>], random: &mut Rng) {
    // Half of them close to the start, where the counts and the first keys are.
    let near_start = if random.bool() { 256.min(bytes.len()) } else { bytes.len() };
    let at = random.usize(0..=near_start);
    match random.u8(0..10) {
        0 => bytes.truncate(at),
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.u8(0..8);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.u8(..);
            }
        }
        kind @ 3..=5 => {
            let number = number(bytes.len(), random).to_le_bytes();
            put(bytes, at, if kind == 5 { &number[..4] } else { &number });
        }
        6 => {
            let end = (at + random.usize(0..64)).min(bytes.len());
            bytes.drain(at..end);
        }
        7 => {
            // Repeat some bytes: duplicate keys and tensors.
            let end = (at + random.usize(0..256)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(end..end, again);
        }
        8 => {
            let more: Vec<u8> = (0..random.usize(0..64)).map(|_| random.u8(..)).collect();
            bytes.splice(at..at, more);
        }
        _ => {
            // The rest of another file.
            let other = random.choice(files).cloned().unwrap_or_default();
            let from = random.usize(0..=other.len());
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
    }
}

fn number(len: usize, random: &mut Rng) -> u64 {
    let any = random.choice(NUMBERS).unwrap_or(0);
    match random.u8(0..4) {
        0 => len as u64 + random.u64(0..40) - 20.min(len as u64),
        1 => any.wrapping_add(random.u64(0..64)),
        2 => random.u64(..) >> random.u32(0..64),
        _ => any,
    }
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(new) {
        *byte = *new;
    }
}
