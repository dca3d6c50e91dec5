//! Filling templates.

/// The template with each `{{name}}` replaced by its value.
///
/// # Panics
/// Where a placeholder has no value: a mistake in a kernel, which every test of it finds.
pub(in crate::kernels) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some(start) = rest.find("{{") {
        let end = start + rest[start..].find("}}").expect("an open placeholder");
        let name = &rest[start + 2..end];
        let (_, value) =
            values.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no value: {name}"));
        text.push_str(&rest[..start]);
        text.push_str(value);
        rest = &rest[end + 2..];
    }
    text.push_str(rest);
    text
}

/// One line for each number below `count`.
pub(in crate::kernels) fn lines(count: u32, mut line: impl FnMut(u32) -> String) -> String {
    let mut text = String::new();
    for i in 0..count {
        text.push_str(&line(i));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn placeholders_are_replaced_and_braces_kept() {
        assert_eq!(fill("a{{x}} { {{y}}{{x}} }", &[("x", "1"), ("y", "{}")]), "a1 { {}1 }");
    }
}
