//! The compiled kernels that this crate embeds: one zstd-compressed file per kernel file, with the PTX of all
//! its targets, written by `scripts/build-kernels`. A file is decompressed when one of its kernels is first
//! needed.

use std::error::Error;
use std::io::Write;
use std::sync::{LazyLock, OnceLock};

use ruzstd::decoding::FrameDecoder;

use crate::ptx;

/// The compute capability that every op has kernels for: `10 * major + minor`.
pub(crate) const OLDEST: u32 = 80;

/// The compiled kernels of one kernel file.
pub(crate) struct Embedded {
    /// The file without `.cu`.
    pub(crate) file: &'static str,
    /// What it is compiled for, such as `80` or `90a`.
    pub(crate) targets: &'static [&'static str],
    compressed: &'static [u8],
    text: OnceLock<String>,
    /// Where the kernels of each target are, in the order of `targets`.
    indexes: Box<[OnceLock<Option<ptx::Index<'static>>>]>,
}

/// Every kernel file.
pub(crate) static EMBEDDED: LazyLock<Vec<Embedded>> =
    LazyLock::new(|| Vec::from(include!("../ptx/embedded.rs")));

impl Embedded {
    fn new(file: &'static str, targets: &'static [&'static str], compressed: &'static [u8]) -> Embedded {
        let indexes = targets.iter().map(|_| OnceLock::new()).collect();
        Embedded { file, targets, compressed, text: OnceLock::new(), indexes }
    }

    pub(crate) fn find(file: &str) -> Option<&'static Embedded> {
        EMBEDDED.iter().find(|embedded| embedded.file == file)
    }

    /// The kernels for a device of this compute capability: those of the newest target that it runs. `None`
    /// if it runs none.
    pub(crate) fn index(&'static self, capability: u32) -> Option<&'static ptx::Index<'static>> {
        let target = newest_target(self.targets, capability)?;
        let at = self.targets.iter().position(|other| *other == target)?;
        self.indexes[at].get_or_init(|| self.ptx_of_target(target).map(ptx::Index::new)).as_ref()
    }

    pub(crate) fn ptx_of_target(&self, target: &str) -> Option<&str> {
        section(self.text(), target)
    }

    fn text(&self) -> &str {
        self.text.get_or_init(|| {
            // The bytes are part of the executable, and a test decompresses every file.
            decompress(self.compressed)
                .unwrap_or_else(|error| panic!("{}.ptx.zst is damaged: {error}", self.file))
        })
    }
}

fn decompress(bytes: &[u8]) -> Result<String, Box<dyn Error>> {
    let mut decoder = FrameDecoder::new();
    decoder.init(bytes)?;
    let mut text = Vec::with_capacity(usize::try_from(decoder.content_size())?);
    decoder.decode_all_to_vec(bytes, &mut text)?;
    if let Some((&STORED, stored)) = text.split_first() {
        text = restored(stored).ok_or("a difference is no number")?;
    }
    Ok(String::from_utf8(text)?)
}

/// Before text in which numbers of registers and labels are differences.
const STORED: u8 = 1;
/// The signs of a difference.
const PLUS: u8 = 2;
const MINUS: u8 = 3;

/// Text with its numbers: each is stored as its difference to the last one that followed the same letters
/// (`%rd`, `%f`). Instances of a template are alike then, and compress to half the size.
fn restored(stored: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(stored.len());
    let mut last: Vec<(u64, i64)> = Vec::new();
    let mut rest = stored;
    while let Some(at) = rest.iter().position(|byte| matches!(*byte, PLUS | MINUS)) {
        text.extend_from_slice(&rest[..at]);
        let letters = text.iter().rev().take_while(|byte| byte.is_ascii_alphabetic());
        let letters = letters.fold(0, |key, byte| key << 8 | u64::from(*byte));
        let digits = rest[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let step: i64 = str::from_utf8(&rest[at + 1..][..digits]).ok()?.parse().ok()?;
        let known = last.iter().position(|(other, _)| *other == letters).unwrap_or_else(|| {
            last.push((letters, 0));
            last.len() - 1
        });
        let number = &mut last[known].1;
        *number += if rest[at] == PLUS { step } else { -step };
        write!(text, "{number}").ok()?;
        rest = &rest[at + 1 + digits..];
    }
    text.extend_from_slice(rest);
    Some(text)
}

/// The PTX of one target. Each begins with a line `// NAME.cu sm_TARGET DIGEST`, and there are no other
/// comments.
fn section<'a>(text: &'a str, target: &str) -> Option<&'a str> {
    let is_target =
        |line: &str| line.split(' ').nth(2).and_then(|word| word.strip_prefix("sm_")) == Some(target);
    let mut starts = text.match_indices("// ").map(|(at, _)| at).peekable();
    while let Some(start) = starts.next() {
        let end = starts.peek().copied().unwrap_or(text.len());
        let section = &text[start..end];
        if section.lines().next().is_some_and(is_target) {
            return Some(section);
        }
    }
    None
}

/// The compute capability that a target needs, and whether it runs only there: `90a` uses instructions that
/// 9.0 has and 10.0 does not.
fn requirement(target: &str) -> (u32, bool) {
    let digits = target.trim_end_matches(|c: char| !c.is_ascii_digit());
    (digits.parse().unwrap_or(u32::MAX), digits.len() < target.len())
}

/// The newest target that a device of this capability runs.
fn newest_target(targets: &[&'static str], capability: u32) -> Option<&'static str> {
    let runs = |target: &str| match requirement(target) {
        (needed, true) => needed == capability,
        (needed, false) => needed <= capability,
    };
    targets.iter().copied().filter(|target| runs(target)).max_by_key(|target| requirement(target))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_newest_target_that_runs_is_chosen() {
        let cases = [(75, None), (80, Some("80")), (89, Some("80")), (90, Some("90a")), (100, Some("90"))];
        for (capability, expected) in cases {
            assert_eq!(newest_target(&["80", "90a", "90"], capability), expected, "{capability}");
        }
    }

    #[test]
    fn sections_are_found_by_target() {
        let text = "// x.cu sm_90 d1\n.target sm_90\n// x.cu sm_90a d2\n.target sm_90a\n";
        assert_eq!(section(text, "90"), Some("// x.cu sm_90 d1\n.target sm_90\n"));
        assert_eq!(section(text, "90a"), Some("// x.cu sm_90a d2\n.target sm_90a\n"));
        assert_eq!(section(text, "9"), None);
    }

    #[test]
    fn numbers_are_restored_from_differences() {
        let stored = b"add.s32 %r\x023, %rd\x0210, %r\x031;\n$L__BB\x022_\x027: %r\x025\n$L__BB\x020_\x032";
        let text = b"add.s32 %r3, %rd10, %r2;\n$L__BB2_7: %r7\n$L__BB2_5";
        assert_eq!(restored(stored).as_deref(), Some(text.as_slice()));
        assert_eq!(restored(b"%r\x02x"), None);
        assert_eq!(restored(b"").as_deref(), Some([].as_slice()));
    }

    #[test]
    fn every_compiled_file_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/ptx");
        let names = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
        let built: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
        let embedded = EMBEDDED.iter().map(|embedded| format!("{}.ptx.zst", embedded.file));
        assert_eq!(built, embedded.chain(["embedded.rs".to_owned()]).collect());
    }

    #[test]
    fn every_target_is_there_and_its_kernels_can_be_extracted() {
        for embedded in EMBEDDED.iter() {
            for target in embedded.targets {
                let all = embedded.ptx_of_target(target).unwrap();
                assert!(all.contains(&format!("\n.target sm_{target}\n")), "{} {target}", embedded.file);
                let names: Vec<&str> = ptx::entries(all).collect();
                assert!(!names.is_empty(), "{} {target}", embedded.file);
                let index = ptx::Index::new(all);
                for name in names {
                    let ptx = index.extract(name).unwrap();
                    assert_eq!(ptx::entries(&ptx).collect::<Vec<_>>(), [name], "{} {target}", embedded.file);
                    assert_eq!(ptx.matches('{').count(), ptx.matches('}').count(), "{name} {target}");
                }
            }
        }
    }
}
