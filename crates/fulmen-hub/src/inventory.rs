//! The models in the cache: listing and removing them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::{self, Cache};
use crate::choose::{RepoFile, choose, complete_models, quantization};
use crate::error::HubError;
use crate::reference::Reference;

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// The shortest name that means this model.
    pub name: String,
    /// `ORG/NAME`, with the host in front if it is not on the hub.
    pub repo: String,
    /// The branch or tag; the commit if none leads to it.
    pub revision: String,
    /// The commit.
    pub commit: String,
    /// Its file or first shard in the repository; `None` for a folder of safetensors files.
    pub file: Option<String>,
    /// What to open: its file, first shard, or folder.
    pub path: PathBuf,
    /// All its files.
    pub files: Vec<PathBuf>,
    /// Their size in bytes.
    pub bytes: u64,
    /// When the last of them was downloaded.
    pub modified: SystemTime,
    /// The type of the weights, as the name of the file says: `Q4_K_M`.
    pub quantization: Option<String>,
}

/// A download that was interrupted. Pulling the same model again resumes it.
#[derive(Clone, Debug)]
pub struct PartialDownload {
    /// `ORG/NAME`, with the host in front if it is not on the hub.
    pub repo: String,
    /// The file in the cache.
    pub path: PathBuf,
    /// The bytes so far.
    pub bytes: u64,
    /// When the last of them came.
    pub modified: SystemTime,
}

/// What is in the cache.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The models, by name.
    pub models: Vec<CachedModel>,
    /// Interrupted downloads.
    pub partial: Vec<PartialDownload>,
}

impl Inventory {
    /// Reads the cache folder. A folder that does not exist is an empty cache.
    pub fn read(root: &Path) -> Result<Inventory, HubError> {
        let mut inventory = Inventory::default();
        let entries = match fs::read_dir(root) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(inventory),
            entries => entries.map_err(HubError::io(root))?,
        };
        for entry in entries {
            let entry = entry.map_err(HubError::io(root))?;
            let name = entry.file_name().into_string().ok();
            // Other things may be in the folder: data sets, files of other tools.
            if let Some(reference) = name.as_deref().and_then(reference) {
                let cache = Cache::of(root, &reference);
                inventory.read_repo(&cache, &reference);
            }
        }
        inventory.models.sort_by(|a, b| a.name.cmp(&b.name));
        inventory.partial.sort_by(|a, b| (&a.repo, &a.path).cmp(&(&b.repo, &b.path)));
        Ok(inventory)
    }

    fn read_repo(&mut self, cache: &Cache, reference: &Reference) {
        for (commit, revision) in cache.snapshots() {
            let snapshot = cache.snapshot(&commit);
            let files = cache.files(&commit);
            for choice in complete_models(&files) {
                let model = cached_model(reference, &commit, &revision, &snapshot, &files, choice);
                self.models.push(model);
            }
        }
        for (path, metadata) in cache.partial_files() {
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let repo = reference.to_string();
            self.partial.push(PartialDownload { repo, path, bytes: metadata.len(), modified });
        }
    }

    /// The models that a reference may mean. Without a file it means every model of the repository; without a
    /// revision `main` comes first.
    pub fn matching(&self, reference: &Reference) -> Vec<&CachedModel> {
        let repo = reference.repo_with_host();
        let file = reference.file().map(str::to_ascii_lowercase);
        let fits = |model: &&CachedModel| {
            model.repo == repo
                && file.as_deref().is_none_or(|wanted| {
                    model.file.as_deref().is_some_and(|file| {
                        file.eq_ignore_ascii_case(wanted) || crate::choose::names(file, wanted)
                    })
                })
        };
        let models: Vec<&CachedModel> = self.models.iter().filter(fits).collect();
        let at = |revision: &str| -> Vec<&CachedModel> {
            let here = |model: &&&CachedModel| model.revision == revision || model.commit == revision;
            models.iter().filter(here).copied().collect()
        };
        match reference.has_revision() {
            true => at(reference.revision()),
            false => match at(reference.revision()) {
                main if !main.is_empty() => main,
                _ => models,
            },
        }
    }
}

fn cached_model(
    reference: &Reference,
    commit: &str,
    revision: &str,
    snapshot: &Path,
    all: &[RepoFile],
    choice: crate::choose::Choice,
) -> CachedModel {
    let quantization = choice.name.as_deref().and_then(quantization);
    let here = match revision {
        "main" => reference.clone(),
        _ => reference.clone().at(revision).unwrap_or_else(|_| reference.clone()),
    };
    // The type if it names this model alone, otherwise the file.
    let names = [quantization.clone(), choice.name.clone()].into_iter().flatten();
    let name = names
        .filter(|name| choose(all, Some(name)).is_ok_and(|found| found.name == choice.name))
        .find_map(|name| here.clone().with_file(&name).ok())
        .unwrap_or(here)
        .to_string();
    let files: Vec<PathBuf> = choice.files.iter().map(|file| snapshot.join(&file.path)).collect();
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|file| file.modified()).ok();
    CachedModel {
        name,
        repo: reference.repo_with_host(),
        revision: revision.to_owned(),
        commit: commit.to_owned(),
        path: choice.name.as_deref().map_or(snapshot.to_owned(), |file| snapshot.join(file)),
        file: choice.name,
        bytes: choice.files.iter().filter_map(|file| file.size).fold(0, u64::saturating_add),
        modified: files.iter().filter_map(modified).max().unwrap_or(SystemTime::UNIX_EPOCH),
        files,
        quantization,
    }
}

/// The repository that a folder of the cache belongs to: `models--[HOST--]ORG--NAME`.
fn reference(folder: &str) -> Option<Reference> {
    let parts: Vec<&str> = folder.strip_prefix("models--")?.split("--").collect();
    let text = match parts[..] {
        [host, org, name] => format!("{}/{org}/{name}", host.replace('+', ":")),
        _ => parts.join("/"),
    };
    text.parse().ok()
}

/// Removes models from the cache, with the content that no other model needs; returns the freed bytes. The
/// folder of a repository goes with its last model, and with it the interrupted downloads. A repository that
/// is being downloaded is an error, and then nothing is removed.
pub fn remove(root: &Path, models: &[&CachedModel]) -> Result<u64, HubError> {
    let mut repos: BTreeMap<&str, Vec<&CachedModel>> = BTreeMap::new();
    models.iter().for_each(|&model| repos.entry(&model.repo).or_default().push(model));
    let mut caches = Vec::new();
    for (repo, models) in repos {
        let cache = Cache::of(root, &repo.parse()?);
        let locks = lock_all(&cache, repo)?;
        caches.push((cache, models, locks));
    }
    let mut freed = 0u64;
    for (cache, models, _locks) in caches {
        freed = freed.saturating_add(remove_from(&cache, &models)?);
    }
    Ok(freed)
}

/// Removes what is left of interrupted downloads of a repository; returns the freed bytes.
pub fn remove_partial(root: &Path, repo: &str) -> Result<u64, HubError> {
    let cache = Cache::of(root, &repo.parse()?);
    let _locks = lock_all(&cache, repo)?;
    let mut freed = 0u64;
    for (path, metadata) in cache.partial_files() {
        fs::remove_file(&path).map_err(HubError::io(&path))?;
        freed = freed.saturating_add(metadata.len());
    }
    if cache.snapshots().is_empty() {
        remove_folder(&cache)?;
    }
    Ok(freed)
}

/// The locks of all downloads of a repository.
fn lock_all(cache: &Cache, repo: &str) -> Result<Vec<File>, HubError> {
    let mut locks = Vec::new();
    // Without the folder nothing was ever downloaded.
    for entry in fs::read_dir(cache.locks()).into_iter().flatten().flatten() {
        let Ok(file) = File::open(entry.path()) else { continue };
        match file.try_lock() {
            Ok(()) => locks.push(file),
            Err(TryLockError::WouldBlock) => return Err(HubError::Busy { repo: repo.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(HubError::io(entry.path())(error)),
        }
    }
    Ok(locks)
}

fn remove_from(cache: &Cache, models: &[&CachedModel]) -> Result<u64, HubError> {
    let folder = cache.folder();
    if folder.is_symlink() {
        return Err(HubError::NotOurs { path: folder, what: "a symbolic link" });
    }
    let before = cache.blob_bytes();
    // First what leads to the content, so that no model is found that is half there.
    for file in models.iter().flat_map(|model| &model.files) {
        match fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(HubError::io(file)(error));
            }
            _ => {}
        }
    }
    let mut kept = false;
    for (commit, _) in cache.snapshots() {
        let files = cache.files(&commit);
        if complete_models(&files).is_empty() && models.iter().any(|model| model.commit == commit) {
            cache.remove_snapshot(&commit)?;
        } else {
            kept |= !files.is_empty();
        }
    }
    if !kept {
        remove_folder(cache)?;
        return Ok(before);
    }
    cache.remove_unused_blobs()?;
    Ok(before.saturating_sub(cache.blob_bytes()))
}

fn remove_folder(cache: &Cache) -> Result<(), HubError> {
    for folder in [cache.folder(), cache.locks()] {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(HubError::io(folder)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

impl Cache {
    /// The commits in the cache, each with a branch or tag that leads to it, or with itself.
    fn snapshots(&self) -> Vec<(String, String)> {
        let mut refs = Vec::new();
        cache::list(&self.folder().join("refs"), "", 4, &mut refs);
        let names: BTreeMap<String, String> = refs
            .into_iter()
            .filter(|file| !file.path.starts_with('.'))
            .filter_map(|file| Some((self.commit(&file.path)?, file.path)))
            // `main` wins.
            .fold(BTreeMap::new(), |mut names, (commit, name)| {
                let known = names.entry(commit).or_insert_with(|| name.clone());
                if name == "main" {
                    *known = name;
                }
                names
            });
        let entries = fs::read_dir(self.folder().join("snapshots")).into_iter().flatten().flatten();
        let mut commits: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        commits.sort();
        let named = |commit: String| {
            let name = names.get(&commit).unwrap_or(&commit).clone();
            (commit, name)
        };
        commits.into_iter().map(named).collect()
    }

    /// The interrupted downloads.
    fn partial_files(&self) -> Vec<(PathBuf, fs::Metadata)> {
        let entries = fs::read_dir(self.folder().join("blobs")).into_iter().flatten().flatten();
        let partial = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "incomplete"));
        partial.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?))).collect()
    }

    /// The bytes of all blobs, complete or not.
    fn blob_bytes(&self) -> u64 {
        let entries = fs::read_dir(self.folder().join("blobs")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).fold(0, u64::saturating_add)
    }

    /// Removes a snapshot and the revisions that lead to it.
    fn remove_snapshot(&self, commit: &str) -> Result<(), HubError> {
        let mut refs = Vec::new();
        cache::list(&self.folder().join("refs"), "", 4, &mut refs);
        for file in refs.iter().filter(|file| self.commit(&file.path).as_deref() == Some(commit)) {
            let path = self.folder().join("refs").join(&file.path);
            fs::remove_file(&path).map_err(HubError::io(&path))?;
        }
        let snapshot = self.snapshot(commit);
        fs::remove_dir_all(&snapshot).map_err(HubError::io(&snapshot))
    }

    /// Removes blobs that no snapshot links to. Where links are copies (Windows), blobs are always removed.
    fn remove_unused_blobs(&self) -> Result<(), HubError> {
        let mut used = BTreeSet::new();
        for (commit, _) in self.snapshots() {
            for file in self.files(&commit) {
                used.extend(fs::canonicalize(self.snapshot(&commit).join(&file.path)).ok());
            }
        }
        for entry in fs::read_dir(self.folder().join("blobs")).into_iter().flatten().flatten() {
            let path = entry.path();
            let partial = path.extension().is_some_and(|end| end == "incomplete");
            if partial || fs::canonicalize(&path).is_ok_and(|path| used.contains(&path)) {
                continue;
            }
            fs::remove_file(&path).map_err(HubError::io(&path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    /// A cache with models of two repositories; both files of `org/name` at `main` have the same blob.
    fn cache() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let add = |repo: &str, revision: &str, commit: &str, file: &str, blob: &str| {
            let cache = Cache::of(root.path(), &repo.parse().unwrap());
            cache.blobs().unwrap();
            fs::write(cache.blob(blob), blob.repeat(10)).unwrap();
            cache.link(&SystemDisk, blob, commit, file).unwrap();
            cache.set_commit(&SystemDisk, revision, commit).unwrap();
        };
        add("org/name", "main", "c0", "m-Q4_K_M.gguf", "aa");
        add("org/name", "main", "c0", "m-Q8_0.gguf", "bbb");
        add("org/name", "v1", "c1", "m-Q4_K_M.gguf", "aa");
        add("org/name", "main", "c0", "README.md", "cccc");
        add("hub.example:80/org/folder", "main", "c2", "config.json", "d");
        add("hub.example:80/org/folder", "main", "c2", "model.safetensors", "e");
        add("org/none", "main", "c3", "README.md", "f");
        root
    }

    fn names(root: &Path) -> Vec<String> {
        Inventory::read(root).unwrap().models.into_iter().map(|model| model.name).collect()
    }

    #[test]
    fn models_are_listed_by_the_shortest_name_that_finds_them() {
        let root = cache();
        let all = ["hub.example:80/org/folder", "org/name:Q4_K_M", "org/name:Q8_0", "org/name@v1:Q4_K_M"];
        assert_eq!(names(root.path()), all);
        let inventory = Inventory::read(root.path()).unwrap();
        for model in &inventory.models {
            let reference: Reference = model.name.parse().unwrap();
            let found = Cache::of(root.path(), &reference).find(&reference).unwrap();
            assert_eq!(found.as_ref(), Some(&model.path), "{}", model.name);
            let matching = inventory.matching(&reference);
            assert_eq!(matching.iter().map(|model| &model.name).collect::<Vec<_>>(), [&model.name]);
        }
        assert_eq!(
            (inventory.models[1].bytes, inventory.models[1].quantization.as_deref()),
            (20, Some("Q4_K_M"))
        );
        assert_eq!(inventory.matching(&"org/name".parse().unwrap()).len(), 2);
        assert_eq!(inventory.matching(&"org/name@v2".parse().unwrap()).len(), 0);
        assert!(Inventory::read(&root.path().join("missing")).unwrap().models.is_empty());
    }

    #[test]
    fn content_goes_with_its_last_model() {
        let root = cache();
        let cache = Cache::of(root.path(), &"org/name".parse().unwrap());
        let remove = |name: &str| {
            let inventory = Inventory::read(root.path()).unwrap();
            super::remove(root.path(), &inventory.matching(&name.parse().unwrap())).unwrap()
        };
        assert_eq!(remove("org/name:Q4_K_M"), 0, "v1 has the same file");
        assert!(cache.blob("aa").exists());
        // The last model of a commit takes the other files of the commit with it.
        assert_eq!(remove("org/name:Q8_0"), 30 + 40);
        assert_eq!(cache.find(&"org/name".parse().unwrap()).unwrap(), None);
        assert!(!cache.folder().join("refs/main").exists());
        fs::write(cache.incomplete("99"), b"part").unwrap();
        assert_eq!(Inventory::read(root.path()).unwrap().partial.len(), 1);
        assert_eq!(remove("org/name@v1"), 20 + 4);
        assert!(!cache.folder().exists());
        assert_eq!(names(root.path()), ["hub.example:80/org/folder"]);
        fs::create_dir_all(cache.folder().join("blobs")).unwrap();
        fs::write(cache.incomplete("99"), b"part").unwrap();
        assert_eq!(remove_partial(root.path(), "org/name").unwrap(), 4);
        assert!(!cache.folder().exists());
    }

    #[test]
    fn a_model_that_is_being_downloaded_is_not_removed() {
        let root = cache();
        let held = Cache::of(root.path(), &"org/name".parse().unwrap()).lock("zz", || Ok(())).unwrap();
        let inventory = Inventory::read(root.path()).unwrap();
        let models: Vec<&CachedModel> = inventory.models.iter().collect();
        assert!(matches!(remove(root.path(), &models), Err(HubError::Busy { .. })));
        assert_eq!(names(root.path()).len(), 4);
        drop(held);
        remove(root.path(), &models).unwrap();
        assert!(names(root.path()).is_empty());
    }
}
