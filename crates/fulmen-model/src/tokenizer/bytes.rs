//! The alphabet of byte-level BPE: each byte is written as one printable character, so that a vocabulary of
//! bytes can be stored as text. Bytes that are printable in Latin-1 map to themselves; the others map to
//! U+0100 and up.

/// The character of each byte.
const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let (mut byte, mut next) = (0u8, 0x100u32);
    loop {
        chars[byte as usize] = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => byte as char,
            _ => {
                let c = char::from_u32(next).expect("the characters up to U+0143 exist");
                next += 1;
                c
            }
        };
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    chars
};

/// The highest character of the alphabet.
const LAST: usize = 0x143;

/// The byte of each character up to `LAST`.
const BYTES: [Option<u8>; LAST + 1] = {
    let mut bytes = [None; LAST + 1];
    let mut byte = 0u8;
    loop {
        bytes[CHARS[byte as usize] as usize] = Some(byte);
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    bytes
};

/// Appends the bytes that a token's text represents. Appends nothing and returns false if a character is not
/// in the alphabet.
pub(super) fn decode_to(text: &str, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for c in text.chars() {
        let Some(byte) = BYTES.get(c as usize).copied().flatten() else {
            out.truncate(start);
            return false;
        };
        out.push(byte);
    }
    true
}

/// The text that represents some bytes.
#[cfg(test)]
pub(super) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| CHARS[usize::from(byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Option<Vec<u8>> {
        let mut out = b"before".to_vec();
        let known = decode_to(text, &mut out);
        assert!(known || out == b"before");
        known.then(|| out[6..].to_vec())
    }

    #[test]
    fn well_known_characters() {
        assert_eq!(encode(b" \n\t\0A~"), "ĠĊĉĀA~");
        assert_eq!(encode(&[0x7f, 0x80, 0xa0, 0xad, 0xff]), "ġĢłŃÿ");
        assert_eq!(decode("Ġworld"), Some(b" world".to_vec()));
        assert_eq!(decode("ń"), None, "the first character behind the alphabet");
        assert_eq!(decode("a b"), None, "a space is written as Ġ");
        assert_eq!(decode("漢"), None);
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
        let mut chars = CHARS.to_vec();
        chars.sort_unstable();
        chars.dedup();
        assert_eq!(chars.len(), 256);
        assert_eq!(chars.last().map(|&c| c as usize), Some(LAST));
    }
}
