//! Cutting PTX: a device compiles only the kernels that it is asked for, as the compiler of the driver needs most of a second for a large
//! one and files have up to a hundred.

/// The lines of a file but for kernels other than `entry`. None if it has no such kernel.
pub(crate) fn only(ptx: &str, entry: &str) -> Option<String> {
    let mut kept = String::with_capacity(ptx.len() / 8);
    let mut found = false;
    let mut lines = ptx.lines();
    while let Some(line) = lines.next() {
        let Some(name) = kernel(line) else {
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

/// The name of the kernel that begins on a line.
fn kernel(line: &str) -> Option<&str> {
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
    fn one_kernel_is_left_with_what_is_not_a_kernel() {
        let first = only(PTX, "first").unwrap();
        assert_eq!(first, PTX.replace(".visible .entry first_of_all()\n{ ret; }\n", ""));
        let other = only(PTX, "first_of_all").unwrap();
        assert!(other.contains("helper") && other.contains("TILE") && other.ends_with("{ ret; }\n"));
        assert!(!other.contains("first_param_0"));
    }

    #[test]
    fn what_is_not_there_is_not_made_up() {
        assert_eq!(only(PTX, "fir"), None);
        assert_eq!(only(PTX, "helper"), None);
        assert_eq!(only(&PTX[..PTX.find("ret;\n}\n.global").unwrap()], "first"), None);
    }
}
