//! The limit of open files: each connection is one.

/// Files that a server has open beside its connections: models, libraries, the devices.
const OTHER_FILES: u64 = 256;

/// How many of the connections the system allows at the same time. The process's own limit is raised as far
/// as it may be.
#[cfg(unix)]
pub(super) fn allowed_connections(wanted: u32) -> u32 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let needed = u64::from(wanted) + OTHER_FILES;
    // No number: there is no limit.
    let Some(current) = limit.current.filter(|&current| current < needed) else { return wanted };
    let raised = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raise = Rlimit { current: Some(raised), ..limit };
    let files = if setrlimit(Resource::Nofile, raise).is_ok() { raised } else { current };
    beside_others(files, wanted)
}

#[cfg(not(unix))]
pub(super) fn allowed_connections(wanted: u32) -> u32 {
    wanted
}

/// The connections that fit into a number of files; at least one.
#[cfg_attr(not(unix), allow(dead_code))]
fn beside_others(files: u64, wanted: u32) -> u32 {
    let left = files.saturating_sub(OTHER_FILES.min(files / 2)).max(1);
    u32::try_from(left).unwrap_or(u32::MAX).min(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_have_room_beside_connections() {
        for (files, allowed) in [(5000, 4096), (4352, 4096), (1024, 768), (300, 150), (1, 1), (0, 1)] {
            assert_eq!(beside_others(files, 4096), allowed, "{files}");
        }
    }
}
