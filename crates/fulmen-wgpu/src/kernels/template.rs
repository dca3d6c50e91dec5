//! Values put into kernel text.

/// The text with each `{{key}}` replaced by its value. A value may hold keys of values that come later.
///
/// # Panics
/// Where a key has no such value: a mistake in a kernel, which every test of it finds.
pub(crate) fn expand(text: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    put(&mut out, text, values);
    out
}

fn put(out: &mut String, text: &str, values: &[(&str, &str)]) {
    let mut rest = text;
    while let Some(start) = rest.find("{{") {
        let length = rest[start..].find("}}").expect("an open key");
        let key = &rest[start + 2..start + length];
        let at = values.iter().position(|(name, _)| *name == key);
        let at = at.unwrap_or_else(|| panic!("no value for {key:?}"));
        out.push_str(&rest[..start]);
        put(out, values[at].1, &values[at + 1..]);
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_become_values_in_order() {
        let text = super::expand("a{{x}}b{{y}}{{x}}", &[("x", "<{{y}}>"), ("y", "2")]);
        assert_eq!(text, "a<2>b2<2>");
        assert_eq!(super::expand("a{{x}} { {{y}} }", &[("y", "{}"), ("x", "1")]), "a1 { {} }");
    }
}
