//! Extracts single kernels from PTX. The driver's compiler needs most of a second for a large kernel and a
//! file has up to a hundred of them, so a device compiles only the kernels that it launches.

/// The names of the kernels.
pub(crate) fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().filter_map(entry_name)
}

/// Where the kernels of a PTX text are. Finding them takes a pass over megabytes, extracting one does not.
pub(crate) struct Index<'a> {
    /// The text in order, cut before and after each kernel; the name where it is a kernel.
    pieces: Vec<(Option<&'a str>, &'a str)>,
}

impl<'a> Index<'a> {
    /// Finds the kernels. What follows a kernel that is cut off is left out.
    pub(crate) fn new(ptx: &'a str) -> Index<'a> {
        let mut pieces = Vec::new();
        let (mut at, mut start) = (0, 0);
        // Depth of the braces of the kernel that `at` is in.
        let mut inside: Option<(&str, usize)> = None;
        for line in ptx.split_inclusive('\n') {
            if inside.is_none()
                && let Some(name) = entry_name(line)
            {
                pieces.push((None, &ptx[start..at]));
                (inside, start) = (Some((name, 0)), at);
            }
            at += line.len();
            if let Some((name, depth)) = &mut inside {
                *depth += line.bytes().filter(|&byte| byte == b'{').count();
                let closed = line.bytes().filter(|&byte| byte == b'}').count();
                *depth = depth.saturating_sub(closed);
                if closed > 0 && *depth == 0 {
                    pieces.push((Some(*name), &ptx[start..at]));
                    (inside, start) = (None, at);
                }
            }
        }
        if inside.is_none() {
            pieces.push((None, &ptx[start..]));
        }
        Index { pieces }
    }

    /// The PTX without all kernels but `entry`. `None` if it has no such kernel.
    pub(crate) fn extract(&self, entry: &str) -> Option<String> {
        let wanted = |name: Option<&str>| name.is_none_or(|name| name == entry);
        self.pieces
            .iter()
            .any(|(name, _)| *name == Some(entry))
            .then(|| self.pieces.iter().filter(|(name, _)| wanted(*name)).map(|(_, text)| *text).collect())
    }
}

/// The name of the kernel that starts on this line.
fn entry_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix(".visible .entry ")?;
    Some(name.split('(').next().unwrap_or(name).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(ptx: &str, entry: &str) -> Option<String> {
        Index::new(ptx).extract(entry)
    }

    const PTX: &str = ".version 8.4
.func helper(
)
{
	ret;
}
.visible .entry first(
	.param .u64 first_param_0
)
.maxntid 32, 1, 1
{
	{ .reg .pred done;
	st.v2.u32 [%rd1], {%r1, %r2};
	}
	ret;
}
.global .align 4 .u32 TILE = 16;
.visible .entry first_of_all()
{ ret; }
";

    #[test]
    fn other_kernels_are_removed_and_the_rest_is_kept() {
        let first = extract(PTX, "first").unwrap();
        assert_eq!(first, PTX.replace(".visible .entry first_of_all()\n{ ret; }\n", ""));
        let other = extract(PTX, "first_of_all").unwrap();
        assert!(other.contains("helper") && other.contains("TILE") && other.ends_with("{ ret; }\n"));
        assert!(!other.contains("first_param_0"));
    }

    #[test]
    fn entries_are_the_names_of_the_kernels() {
        assert_eq!(entries(PTX).collect::<Vec<_>>(), ["first", "first_of_all"]);
    }

    #[test]
    fn unknown_and_truncated_kernels_are_not_extracted() {
        assert_eq!(extract(PTX, "fir"), None);
        assert_eq!(extract(PTX, "helper"), None);
        assert_eq!(extract(&PTX[..PTX.find("ret;\n}\n.global").unwrap()], "first"), None);
    }
}
