//! Extracts single kernels from PTX. The driver's compiler needs most of a second for a large kernel and a
//! file has up to a hundred of them, so a device compiles only the kernels that it launches.

/// The names of the kernels.
pub(crate) fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().filter_map(entry_name)
}

/// The PTX without all kernels but `entry`. `None` if it has no such kernel.
pub(crate) fn extract(ptx: &str, entry: &str) -> Option<String> {
    let mut kept = String::with_capacity(ptx.len() / 8);
    let mut found = false;
    let mut lines = ptx.lines();
    while let Some(line) = lines.next() {
        let Some(name) = entry_name(line) else {
            kept.extend([line, "\n"]);
            continue;
        };
        let wanted = name == entry;
        found |= wanted;
        let (mut depth, mut line) = (0, line);
        loop {
            if wanted {
                kept.extend([line, "\n"]);
            }
            depth += line.matches('{').count();
            let closed = line.matches('}').count();
            depth = depth.saturating_sub(closed);
            if closed > 0 && depth == 0 {
                break;
            }
            line = lines.next()?;
        }
    }
    found.then_some(kept)
}

/// The name of the kernel that starts on this line.
fn entry_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix(".visible .entry ")?;
    Some(name.split('(').next().unwrap_or(name).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

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
