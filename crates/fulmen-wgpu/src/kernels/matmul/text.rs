//! Text that repeats.

/// One line for each number below `count`.
pub(in crate::kernels) fn lines(count: u32, mut line: impl FnMut(u32) -> String) -> String {
    let mut text = String::new();
    for i in 0..count {
        text.push_str(&line(i));
        text.push('\n');
    }
    text
}
