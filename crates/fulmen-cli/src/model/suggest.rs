//! Names that a mistyped one may mean.

/// How many names are suggested at most.
const SHOWN: usize = 3;

/// The names that are near to a word, the nearest first.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    let mut near: Vec<(usize, &str)> =
        names.into_iter().filter_map(|name| Some((distance(&word, name)?, name))).collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(SHOWN).collect()
}

/// How far a name is from a word in lowercase; `None` if it cannot be meant. The organization and the file of
/// a model may be left out, and a part of a name is near.
fn distance(word: &str, name: &str) -> Option<usize> {
    let name = name.to_lowercase();
    let without_file = name.split(':').next().unwrap_or(&name);
    let last = |text: &str| text.rsplit('/').next().unwrap_or(text).to_owned();
    let forms = [name.clone(), without_file.to_owned(), last(&name), last(without_file)];
    // A third of the letters may be wrong.
    let most = (word.chars().count() / 3).clamp(1, 6);
    let edits = forms.iter().map(|form| strsim::damerau_levenshtein(word, form)).min()?;
    if edits <= most {
        return Some(edits);
    }
    let part = word.len() >= 3 && name.contains(word);
    part.then_some(most + 1)
}

/// `; did you mean a, b or c?`, or nothing.
pub(crate) fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [rest @ .., last] => format!("; did you mean {} or {last}?", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_names_are_found() {
        let models = ["Qwen/Qwen3-4B-GGUF:Q4_K_M", "ggml-org/SmolLM3-3B-GGUF:Q8_0", "smol"];
        let near = |word: &str| nearest(word, models);
        assert_eq!(near("Qwen/Qwen3-4B-GUF:Q4_K_M"), models[..1]);
        assert_eq!(near("qwen/qwen3-4b-gguf"), models[..1]);
        assert_eq!(near("qwen3-4b-ggu"), models[..1]);
        assert_eq!(near("qwen3"), models[..1]);
        assert_eq!(near("smlo"), [models[2]]);
        assert_eq!(near("smollm3"), [models[1]]);
        assert_eq!(near("Hello"), [""; 0]);
        assert_eq!(near("Once"), [""; 0]);
    }

    #[test]
    fn suggestions_are_a_sentence() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(did_you_mean(&[]), "");
        assert_eq!(did_you_mean(&names(&["a"])), "; did you mean a?");
        assert_eq!(did_you_mean(&names(&["a", "b", "c"])), "; did you mean a, b or c?");
    }
}
