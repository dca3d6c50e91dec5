//! Values put into kernel text.

/// The text with each `{{key}}` replaced by its value. A value may hold keys that come later in `values`.
pub(crate) fn expand(text: &str, values: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (key, value) in values {
        text = text.replace(&format!("{{{{{key}}}}}"), value);
    }
    debug_assert!(!text.contains("{{"), "a key without a value in:\n{text}");
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_become_values_in_order() {
        let text = super::expand("a{{x}}b{{y}}{{x}}", &[("x", "<{{y}}>"), ("y", "2")]);
        assert_eq!(text, "a<2>b2<2>");
    }
}
