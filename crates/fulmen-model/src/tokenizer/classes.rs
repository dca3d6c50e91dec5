//! Character classes of the pre-tokenizers' patterns: `\p{L}`, `\p{N}`, `\s` and so on.
//!
//! The categories are those of Unicode 16. Libraries with older tables treat newer characters as unassigned,
//! which the patterns handle like punctuation.

use unicode_general_category::{GeneralCategory, get_general_category};

/// The classes of one character, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    /// The end of the text.
    pub(super) const END: Class = Class(0x80);

    const LETTER: u8 = 0x01;
    const NUMBER: u8 = 0x02;
    const SPACE: u8 = 0x04;
    const MARK: u8 = 0x08;
    const PUNCTUATION: u8 = 0x10;
    /// `\p{Lu}` and `\p{Lt}`.
    const UPPER: u8 = 0x20;
    /// `\p{Ll}`.
    const LOWER: u8 = 0x40;

    /// The class of a character.
    #[inline]
    pub(super) fn of(c: char) -> Class {
        match ASCII.get(c as usize) {
            Some(&class) => class,
            None => Class::look_up(c),
        }
    }

    fn look_up(c: char) -> Class {
        use GeneralCategory as G;
        let category = match get_general_category(c) {
            G::UppercaseLetter | G::TitlecaseLetter => Class::LETTER | Class::UPPER,
            G::LowercaseLetter => Class::LETTER | Class::LOWER,
            G::ModifierLetter | G::OtherLetter => Class::LETTER,
            G::DecimalNumber | G::LetterNumber | G::OtherNumber => Class::NUMBER,
            G::NonspacingMark | G::SpacingMark | G::EnclosingMark => Class::MARK,
            G::ConnectorPunctuation
            | G::DashPunctuation
            | G::OpenPunctuation
            | G::ClosePunctuation
            | G::InitialPunctuation
            | G::FinalPunctuation
            | G::OtherPunctuation => Class::PUNCTUATION,
            _ => 0,
        };
        Class(category | if c.is_whitespace() { Class::SPACE } else { 0 })
    }

    const fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    /// `\p{L}`
    pub(super) const fn is_letter(self) -> bool {
        self.has(Class::LETTER)
    }

    /// `\p{N}`
    pub(super) const fn is_number(self) -> bool {
        self.has(Class::NUMBER)
    }

    /// `\s`
    pub(super) const fn is_space(self) -> bool {
        self.has(Class::SPACE)
    }

    /// `\p{P}`
    pub(super) const fn is_punctuation(self) -> bool {
        self.has(Class::PUNCTUATION)
    }

    /// `[\p{L}\p{M}]`
    pub(super) const fn is_letter_or_mark(self) -> bool {
        self.has(Class::LETTER | Class::MARK)
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: what a word may start with.
    pub(super) const fn is_head(self) -> bool {
        self.is_letter_or_mark() && !self.has(Class::LOWER)
    }

    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: what a word may continue with.
    pub(super) const fn is_tail(self) -> bool {
        self.is_letter_or_mark() && !self.has(Class::UPPER)
    }

    /// `[^\s\p{L}\p{N}]`, and not the end.
    pub(super) const fn is_other(self) -> bool {
        !self.has(Class::SPACE | Class::LETTER | Class::NUMBER | Class::END.0)
    }

    /// `[^\s\p{L}\p{M}\p{N}]`, and not the end.
    pub(super) const fn is_other_than_mark(self) -> bool {
        self.is_other() && !self.has(Class::MARK)
    }
}

/// The classes of the first 128 characters.
const ASCII: [Class; 128] = {
    let mut classes = [Class(0); 128];
    let mut i = 0u8;
    while i < 128 {
        let bits = match i {
            b'A'..=b'Z' => Class::LETTER | Class::UPPER,
            b'a'..=b'z' => Class::LETTER | Class::LOWER,
            b'0'..=b'9' => Class::NUMBER,
            b'\t'..=b'\r' | b' ' => Class::SPACE,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => 0,
            b'!'..=b'~' => Class::PUNCTUATION,
            _ => 0,
        };
        classes[i as usize] = Class(bits);
        i += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ascii_table_is_what_look_up_gives() {
        for c in '\0'..='\x7f' {
            assert_eq!(Class::of(c), Class::look_up(c), "{c:?}");
        }
    }

    #[test]
    fn every_script_has_its_class() {
        for c in "aZäßéжяあア漢字عदख한กǅʰªº".chars() {
            assert!(Class::of(c).is_letter() && !Class::of(c).is_other(), "{c:?}");
        }
        for c in "059٣४Ⅷ½²①〇".chars() {
            assert!(Class::of(c).is_number() && !Class::of(c).is_letter(), "{c:?}");
        }
        for c in "\t\n\u{b}\u{c}\r \u{85}\u{a0}\u{1680}\u{2003}\u{2028}\u{202f}\u{205f}\u{3000}".chars() {
            assert!(Class::of(c).is_space() && !Class::of(c).is_other(), "{c:?}");
        }
        for c in "\u{301}\u{94d}\u{20dd}\u{fe0f}".chars() {
            let class = Class::of(c);
            assert!(class.is_letter_or_mark() && !class.is_letter() && class.is_other(), "{c:?}");
            assert!(class.is_head() && class.is_tail() && !class.is_other_than_mark(), "{c:?}");
        }
        for c in "!_-«»。¿·".chars() {
            assert!(Class::of(c).is_punctuation() && Class::of(c).is_other(), "{c:?}");
        }
        // Symbols, controls, private use, unassigned, and characters that merely look like spaces.
        for c in "+€🦀\0\u{7f}\u{e000}\u{378}\u{10ffff}\u{200b}\u{feff}\u{1c}".chars() {
            assert!(Class::of(c).is_other_than_mark() && !Class::of(c).is_punctuation(), "{c:?}");
        }
        assert!(Class::of('A').is_head() && !Class::of('A').is_tail());
        assert!(Class::of('a').is_tail() && !Class::of('a').is_head());
        assert!(Class::of('漢').is_tail() && Class::of('漢').is_head());
        assert!(Class::of('ǅ').is_head() && !Class::of('ǅ').is_tail());
        assert!(!Class::END.is_other() && !Class::END.is_letter() && !Class::END.is_space());
    }
}
