//! Models split into several files (shards): `model-00001-of-00003.gguf` and so on.

use std::path::{Path, PathBuf};

use super::error::{Found, GgufProblem, SplitProblem};
use super::metadata::Metadata;

/// The shard's number (from 0).
const NUMBER: &str = "split.no";
/// Number of shards.
const COUNT: &str = "split.count";
/// Number of tensors in all shards.
const TENSORS: &str = "split.tensors.count";

/// The split metadata of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// From 0.
    number: Option<u64>,
    count: u64,
    tensors: Option<u64>,
}

impl Split {
    /// The split metadata, if the file is one of several shards.
    pub(super) fn of(metadata: &Metadata) -> Result<Option<Split>, GgufProblem> {
        let Some(count @ 2..) = metadata.opt_u64(COUNT)? else { return Ok(None) };
        let (number, tensors) = (metadata.opt_u64(NUMBER)?, metadata.opt_u64(TENSORS)?);
        Ok(Some(Split { number, count, tensors }))
    }

    /// The shard's number, from 1, for messages and file names.
    fn shard(self) -> u64 {
        self.number.unwrap_or(0).saturating_add(1)
    }

    /// The error for shards that are not in the folder of the one at `path`.
    pub(super) fn missing(self, path: &Path) -> SplitProblem {
        // Enough for any real model; the count is the file's word.
        const LOOKED_AT: usize = 1000;
        let absent = match self.paths(path) {
            Ok(paths) => paths.take(LOOKED_AT).filter(|path| !path.exists()).collect(),
            Err(_) => Vec::new(),
        };
        let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let missing = absent.iter().filter_map(name).collect();
        SplitProblem::Missing { shard: self.shard(), count: self.count, missing }
    }

    /// The error for a shard without a path.
    pub(super) fn without_path(self) -> SplitProblem {
        SplitProblem::NoPath { shard: self.shard(), count: self.count }
    }

    /// The paths of all shards, derived from the path of this one.
    pub(super) fn paths(self, path: &Path) -> Result<impl Iterator<Item = PathBuf>, SplitProblem> {
        let count = self.count;
        let wrong = || SplitProblem::Name { shard: self.shard(), count };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?;
        let stem = name.strip_suffix(&ending(self.shard(), count)).ok_or_else(wrong)?.to_owned();
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok((1..=count).map(move |shard| folder.join(format!("{stem}{}", ending(shard, count)))))
    }

    /// Checks that the metadata of shard `number` (from 0) is consistent with this shard's.
    pub(super) fn check_shard(self, number: u64, metadata: &Metadata) -> Result<(), GgufProblem> {
        let found = metadata.opt_u64(COUNT)?;
        same(COUNT, self.count, found)?;
        same(NUMBER, number, metadata.opt_u64(NUMBER)?)?;
        match (self.tensors, metadata.opt_u64(TENSORS)?) {
            (Some(expected), Some(found)) => same(TENSORS, expected, Some(found)),
            _ => Ok(()),
        }
    }

    /// Checks the total number of tensors in all shards against the metadata.
    pub(super) fn check_tensors(self, found: usize) -> Result<(), GgufProblem> {
        match self.tensors {
            // Reported as a wrong value of the key: the actual count is the expected value.
            Some(expected) => same(TENSORS, u64::try_from(found).unwrap_or(u64::MAX), Some(expected)),
            None => Ok(()),
        }
    }
}

fn ending(shard: u64, count: u64) -> String {
    format!("-{shard:05}-of-{count:05}.gguf")
}

fn same(key: &'static str, expected: u64, found: Option<u64>) -> Result<(), GgufProblem> {
    match found == Some(expected) {
        true => Ok(()),
        false => Err(SplitProblem::Mismatch { key, expected, found: Found(found) }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_one_shard_yields_all() {
        let split = Split { number: Some(1), count: 3, tensors: None };
        let paths: Vec<PathBuf> = split.paths(Path::new("dir/m-00002-of-00003.gguf")).unwrap().collect();
        let names = ["dir/m-00001-of-00003.gguf", "dir/m-00002-of-00003.gguf", "dir/m-00003-of-00003.gguf"];
        assert_eq!(paths, names.map(PathBuf::from));
        for wrong in ["m-00001-of-00003.gguf", "m.gguf", "m-2-of-3.gguf", "", "m-00002-of-00003.bin"] {
            let error = split.paths(Path::new(wrong)).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("does not end in \"-00002-of-00003.gguf\";"), "{error}");
        }
    }
}
