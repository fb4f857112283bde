//! Reads the restored configuration for paths of the original server.
//!
//! The restored server would use these paths: start in the old data directory, or share files with
//! the old server. A link would let a new configuration overwrite the old one.

use fullbore_format::{
    entry::{self, EntryKind, EntryPath},
    error::{ErrorKind, Result, quoted},
    page::PageItem,
    root::{ClusterInfo, EntryName},
};
use fullbore_platform::dir::real_path;
use fullbore_postgres::restore::{conf, plan::AUTO_CONF};
use fullbore_repository::archive::small_file::small_file;
use fullbore_repository::archive::{Archive, Selection};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

const MAIN: &[u8] = b"postgresql.conf";
/// Settings with the path of a file that both servers would share.
const SHARED: [&str; 3] = ["hba_file", "ident_file", "external_pid_file"];

/// Limit for nested includes, the same as the server's.
const MAX_DEPTH: u32 = 10;

/// The configuration in a backup.
pub(crate) struct Configuration {
    /// Settings of `postgresql.conf` and the files that it includes; `None` if the backup does not
    /// have it.
    main: Option<Vec<Setting>>,
    /// Settings that the server itself wrote; they override `main`.
    auto: Vec<Setting>,
    /// Names of files that are links out of the restored directory, and their targets.
    links: Vec<(&'static [u8], EntryPath)>,
    /// Included files that are not in the backup: the including file, and the name in it.
    missing_includes: Vec<(EntryPath, String)>,
    /// See [`ConfigReader`].
    is_too_deep: bool,
    /// The directory to restore to.
    to: PathBuf,
}

/// One setting, and the file that has it.
struct Setting {
    file: EntryPath,
    name: String,
    value: String,
}

impl Configuration {
    /// Reads the configuration in a backup that will be restored to `to`.
    ///
    /// # Errors
    /// Damage to a page, and those of [`small_file`].
    pub(crate) fn read(archive: &Archive, to: &Path) -> Result<Self> {
        let destination = std::path::absolute(to).unwrap_or_else(|_| to.to_owned());
        let mut links = Vec::new();
        for name in conf::FILES.map(str::as_bytes) {
            let Some(target) = link_target(archive, name)? else {
                continue;
            };
            let is_stored = match resolve_in_backup(&destination, b"", &target) {
                Some(path) => config_text(archive, &path)?.is_some(),
                None => false,
            };
            if !is_stored {
                links.push((name, target));
            }
        }
        let mut reader = ConfigReader {
            archive,
            to: &destination,
            found: Vec::new(),
            missing_includes: Vec::new(),
            is_too_deep: false,
        };
        let has_main = reader.read_file(MAIN, 0)?;
        let main = has_main.then_some(std::mem::take(&mut reader.found));
        reader.read_file(AUTO_CONF, 0)?;
        let ConfigReader {
            found: auto,
            missing_includes,
            is_too_deep,
            ..
        } = reader;
        Ok(Self {
            main,
            auto,
            links,
            missing_includes,
            is_too_deep,
            to: destination,
        })
    }

    /// Returns whether the backup has the whole configuration.
    pub(crate) fn is_whole(&self) -> bool {
        self.main.is_some() && self.missing_includes.is_empty() && !self.is_too_deep
    }

    /// Returns the value of a setting; `None` if it is empty or not set.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        let found = last(&self.auto, name).or_else(|| last(self.main.as_deref()?, name))?;
        Some(found.value.clone()).filter(|value| !value.is_empty())
    }

    /// Returns notes on files that the restored server will lack, or share with the old server.
    pub(crate) fn notes(&self, cluster: &ClusterInfo) -> Vec<String> {
        let shared = SHARED
            .into_iter()
            .filter_map(|name| Some((name, self.outside_target(self.value(name)?)?)));
        let logs = self
            .value("log_directory")
            .and_then(|path| self.outside_target(path))
            .map(|path| {
                format!(
                    "log_directory is set to {path:?}: the restored server writes its log there too"
                )
            });
        let missing = self.main.is_none() && !self.links.iter().any(|(name, _)| *name == MAIN);
        let missing = missing.then(|| missing_config_note(cluster));
        let shared = shared.map(|(name, path)| {
            format!("{name} is set to {path:?}: the restored server uses that file too")
        });
        let links = self
            .links
            .iter()
            .map(|(name, target)| link_note(name, target));
        let deep = self.is_too_deep.then(|| {
            "files of the configuration include each other: no server starts with that".to_owned()
        });
        missing
            .into_iter()
            .chain(links)
            .chain(self.missing_includes.iter().map(include_note))
            .chain(deep)
            .chain(shared)
            .chain(logs)
            .collect()
    }

    /// Returns a step that is needed before the server starts.
    pub(crate) fn before_start(&self, cluster: &ClusterInfo) -> Option<String> {
        let Some(main) = &self.main else {
            return (!has_original_config(cluster, &self.to)).then(|| self.missing_config_step());
        };
        // The server reads `data_directory` only from `postgresql.conf` and the files that it
        // includes.
        let data = last(main, "data_directory")?;
        let value = self.outside_target(data.value.clone())?;
        let conf = self.at(&data.file);
        Some(format!(
            "remove data_directory = {value:?} from {}: with it the server starts there",
            quoted(&conf)
        ))
    }

    /// Returns the step that provides the missing configuration.
    ///
    /// If the new file set the old data directory, the server would start there. Copying to a link
    /// would overwrite the old server's file.
    fn missing_config_step(&self) -> String {
        let links: Vec<_> = self
            .links
            .iter()
            .map(|(name, _)| quoted(&self.at(name)))
            .collect();
        let first = match &links[..] {
            [] => String::new(),
            links => format!(
                "remove {}, so that no file is written to its target; then ",
                links.join(" and ")
            ),
        };
        format!(
            "{first}put \"pg_hba.conf\" and a \"postgresql.conf\" that sets no data_directory \
                into {:?}",
            self.to
        )
    }

    /// Path of a file after the restore.
    fn at(&self, name: &[u8]) -> EntryPath {
        self.to
            .join(OsStr::from_bytes(name))
            .into_os_string()
            .into_encoded_bytes()
    }

    /// Returns the path, unless it is inside the restored directory. A path that is not absolute begins there.
    fn outside_target(&self, path: String) -> Option<String> {
        let leaves = |path: &Path| path.components().any(|part| part == Component::ParentDir);
        let place = self.to.join(&path);
        (!place.starts_with(&self.to) || leaves(Path::new(&path))).then_some(path)
    }
}

fn include_note((file, path): &(EntryPath, String)) -> String {
    format!(
        "{} includes {path:?}, which is not in the backup",
        quoted(file)
    )
}

fn link_note(name: &[u8], target: &[u8]) -> String {
    format!(
        "{} is a link to {}, which is not in the backup",
        quoted(name),
        quoted(target)
    )
}

/// Returns whether `to` is the cluster's original directory, and its configuration, which is
/// elsewhere, still exists.
pub(crate) fn has_original_config(cluster: &ClusterInfo, to: &Path) -> bool {
    let there = |name: &EntryName| real_path(Path::new(OsStr::from_bytes(&name.0))).ok();
    let is_in_place = there(&cluster.data_directory)
        .is_some_and(|data| real_path(to).is_ok_and(|target| target == data));
    is_in_place
        && !cluster.configuration.is_empty()
        && cluster
            .configuration
            .iter()
            .all(|path| there(path).is_some())
}

/// Reads configuration files in the server's order: an included file takes the place of its include
/// line.
struct ConfigReader<'a> {
    archive: &'a Archive,
    to: &'a Path,
    found: Vec<Setting>,
    missing_includes: Vec<(EntryPath, String)>,
    /// True if files include each other too deeply. No server starts then, and reading stops.
    is_too_deep: bool,
}

impl ConfigReader<'_> {
    /// Reads the file at `path`, or the target of a link there; returns whether the backup has it.
    fn read_file(&mut self, path: &[u8], depth: u32) -> Result<bool> {
        self.is_too_deep |= depth > MAX_DEPTH;
        if self.is_too_deep {
            return Ok(true);
        }
        let Some(real) = self.follow_link(path)? else {
            return Ok(false);
        };
        let Some(text) = config_text(self.archive, &real)? else {
            return Ok(false);
        };
        for (name, value) in conf::settings(&text) {
            let included = resolve_in_backup(self.to, entry::split(path).0, value.as_bytes());
            let is_there = match (name.as_str(), included) {
                ("include" | "include_if_exists" | "include_dir", None) => false,
                ("include", Some(path)) => self.read_file(&path, depth + 1)?,
                // PostgreSQL passes over a file that does not exist.
                ("include_if_exists", Some(path)) => {
                    self.read_file(&path, depth + 1)? || !self.archive.has(&path)?
                }
                ("include_dir", Some(path)) => self.read_directory(&path, depth + 1)?,
                _ => {
                    self.found.push(Setting {
                        file: path.to_vec(),
                        name,
                        value,
                    });
                    continue;
                }
            };
            if !is_there {
                self.missing_includes.push((path.to_vec(), value));
            }
        }
        Ok(true)
    }

    /// Reads the files of a directory that the server would read; returns whether the backup has
    /// the directory.
    fn read_directory(&mut self, path: &[u8], depth: u32) -> Result<bool> {
        if self.is_too_deep {
            return Ok(true);
        }
        let Some(real) = self
            .follow_link(path)?
            .filter(|real| real.is_empty() || self.archive.has(real).unwrap_or(true))
        else {
            return Ok(false);
        };
        // Unreadable pages are reported by the restore itself.
        let items = self
            .archive
            .records(&Selection::new(&[&real])?, false)
            .flatten();
        let mut names: Vec<_> = items
            .filter_map(|item| included_name(&item, &real))
            .collect();
        names.sort_unstable();
        for name in names {
            let file = entry::join(path, &name);
            if !self.read_file(&file, depth)? {
                self.missing_includes
                    .push((file.clone(), String::from_utf8_lossy(&file).into_owned()));
            }
        }
        Ok(true)
    }

    /// Returns the path after following a link; `None` if the link leads out of the restored
    /// directory.
    fn follow_link(&self, path: &[u8]) -> Result<Option<EntryPath>> {
        match link_target(self.archive, path)? {
            Some(target) => Ok(resolve_in_backup(self.to, entry::split(path).0, &target)),
            None => Ok(Some(path.to_vec())),
        }
    }
}

/// Returns the name of a file that `include_dir` reads in this directory.
fn included_name(item: &PageItem, directory: &[u8]) -> Option<Vec<u8>> {
    let (parent, name) = entry::split(&item.entry.path);
    let is_read = parent == directory && name.ends_with(b".conf") && !name.starts_with(b".");
    (is_read && item.from == 0).then(|| name.to_vec())
}

/// Returns the last, effective value of a setting.
fn last<'a>(settings: &'a [Setting], name: &str) -> Option<&'a Setting> {
    settings.iter().rev().find(|setting| setting.name == name)
}

/// Returns the note that the configuration is not in the backup.
fn missing_config_note(cluster: &ClusterInfo) -> String {
    let places: Vec<_> = cluster
        .configuration
        .iter()
        .map(|path| quoted(&path.0))
        .collect();
    let places = if places.is_empty() {
        "elsewhere".to_owned()
    } else {
        format!("in {}", places.join(", "))
    };
    format!("\"postgresql.conf\" is not in the backup: the server had its configuration {places}")
}

/// Returns the text of a configuration file; empty if it is damaged, which the restore of the file
/// reports.
fn config_text(archive: &Archive, path: &[u8]) -> Result<Option<Vec<u8>>> {
    match small_file(archive, path) {
        Err(error) if error.kind == ErrorKind::Corrupt => Ok(Some(Vec::new())),
        other => Ok(other?.map(|(_, text)| text)),
    }
}

/// Returns the target of the entry at `path`, if it is a link.
fn link_target(archive: &Archive, path: &[u8]) -> Result<Option<EntryPath>> {
    let items = archive.find(path)?;
    Ok(items.first().and_then(|item| match &item.entry.kind {
        EntryKind::Symlink(target) if item.state.is_stored() => Some(target.clone()),
        _ => None,
    }))
}

/// Resolves `target`, found in the directory `dir` of the backup; `None` if it leads out of the
/// backup.
fn resolve_in_backup(to: &Path, dir: &[u8], target: &[u8]) -> Option<EntryPath> {
    let target = Path::new(OsStr::from_bytes(target));
    let (mut path, target) = if target.is_absolute() {
        (EntryPath::new(), target.strip_prefix(to).ok()?)
    } else {
        (dir.to_vec(), target)
    };
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => path = entry::join(&path, name.as_bytes()),
            _ => return None,
        }
    }
    Some(path)
}
