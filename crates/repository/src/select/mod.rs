//! Selects backups of a repository by host, path and tag, and the latest of them.
//!
//! The latest backup is found only if all selected backups have one source. A source is a host and
//! its paths: if a repository has several sources, its newest backup depends on which source was
//! backed up last, and the user has not chosen that.

use super::{
    annotations::Annotations,
    counted::{counted_backups, counted_lost_roots, with_later_backups},
    from_word::{named, without_backup},
    listed::{list_backups, no_backup},
    retention::TagRule,
    scan::{ROOT_DAMAGED, lost_root},
};
use crate::archive::object::Sealing;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{Root, SourceInfo},
    text::shown,
};
use fullbore_storage::Objects;
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    sync::Arc,
};

const LISTED_SOURCES: usize = 20;

/// Which backups a command applies to. A backup must match every given criterion; an empty filter
/// selects all backups.
#[derive(Debug, Clone, Default)]
pub struct BackupFilter {
    /// The host, as `fullbore list` prints it before the colon.
    pub host: Option<String>,
    /// Paths that the source must contain, absolute or `stdin:NAME`. The source may have more.
    pub paths: Vec<OsString>,
    /// Whether the source must have no other paths.
    pub is_exact: bool,
    /// Tags that the backup must have, all of them.
    pub tags: Vec<TagRule>,
    /// The source that is meant if the selected backups have several, and it is among them.
    pub own: Option<OwnSource>,
    /// The command that an error message repeats with one source chosen.
    pub retry: RetryLine,
}

/// The source that a profile backs up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSource {
    pub host: String,
    /// All paths of the source, in any order.
    pub paths: BTreeSet<Vec<u8>>,
}

impl OwnSource {
    /// Returns whether a backup is of this source.
    pub fn is(&self, source: &SourceInfo) -> bool {
        let paths: BTreeSet<_> = source.paths.iter().map(|path| path.0.clone()).collect();
        self.host == source.host && self.paths == paths
    }
}

/// A command line, and how it selects a backup.
#[derive(Debug, Clone, Default)]
pub struct RetryLine {
    /// The words, with the program; if empty, errors name ids only.
    pub words: Vec<OsString>,
    /// Whether the command accepts `--host` and `--path`.
    pub has_options: bool,
    /// Index of the word that is a repository and may be followed by `@ID`.
    pub from: Option<usize>,
}

impl BackupFilter {
    /// Returns whether the filter selects all backups.
    pub fn is_empty(&self) -> bool {
        self.host.is_none() && self.paths.is_empty() && self.tags.is_empty()
    }

    /// Returns whether the filter selects this backup. `root` must include the tags of the
    /// annotations. A backup with a lost root may have any source, and is selected.
    pub fn selects(&self, root: &Root) -> bool {
        (root.source.is_unknown() || self.selects_source(&root.source))
            && self.tags.iter().all(|tag| tag.is_in(&root.tags))
    }

    fn selects_source(&self, source: &SourceInfo) -> bool {
        let is_alone = !self.is_exact || source.paths.len() == self.paths.len();
        let is_host = self.host.as_ref().is_none_or(|host| *host == source.host);
        is_host
            && is_alone
            && self
                .paths
                .iter()
                .all(|path| source.paths.iter().any(|of_it| of_it.0 == path.as_bytes()))
    }

    /// Returns whether the filter selects this backup of a repository. Tags of annotations count;
    /// damaged annotations do not.
    pub fn selects_in(&self, objects: &Arc<dyn Objects>, root: &mut Root) -> bool {
        if !self.tags.is_empty()
            && let Ok(notes) = Annotations::read(&**objects, &root.id)
        {
            notes.apply(root);
        }
        self.selects(root)
    }

    /// Refuses a named backup that the filter does not select.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub fn check(&self, root: &Root) -> Result<()> {
        if self.selects(root) {
            return Ok(());
        }
        let message = format!("cannot use backup {:?}: {self} does not select it", root.id);
        Err(Error::new(ErrorKind::Usage, message)
            .because(format!("it is of {}", text_of(&root.source))))
    }

    /// Refuses a filter where there is no repository, as for a stream.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it is not empty.
    pub fn must_be_empty(&self, source: &OsStr) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let message = format!(
            "cannot select a backup by {self}: {source:?} is not a repository or archive of fullbore"
        );
        Err(Error::new(ErrorKind::Usage, message))
    }

    /// The error of a repository without any selected backup: it lists the sources that exist.
    pub fn none_selected(&self, objects: &Arc<dyn Objects>) -> Result<Error> {
        let mut all = SourceList::default();
        for (id, root) in list_backups(objects)? {
            let Ok(mut root) = root else { continue };
            if !self.tags.is_empty() {
                let _ = Annotations::read(&**objects, &id).map(|notes| notes.apply(&mut root)); // damage: use the tags of the root
            }
            all.add(&root);
        }
        if all.0.is_empty() {
            return no_backup(&**objects);
        }
        let message = format!(
            "could not find a backup in {} that {self} selects",
            objects.describe("")
        );
        let line = |kin: &SourceBackups| format!("{kin}{}", tags_of(self, kin));
        let error = all.list(Error::new(ErrorKind::NotFound, message), |error, kin| {
            error.detail(line(kin))
        });
        Ok(error.hint(
            "--host and --path refer to the source, as `fullbore list` prints it; name a path inside the backup without an option",
        ))
    }

    /// Returns the id of the latest selected backup that [counts](super::counted). If the root of a later backup is damaged, it
    /// returns that one: the caller finds the damage on opening it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the selected backups have several sources; [`ErrorKind::NotFound`]
    /// if none is selected;
    /// [`ErrorKind::Corrupt`] if the root of a later backup is lost.
    pub fn latest(&self, objects: &Arc<dyn Objects>) -> Result<String> {
        let mut sources = SourceList::default();
        let (mut newest, mut unknown, mut damaged, mut is_any_readable) = (None, None, None, false);
        for (id, root) in counted_backups(objects)? {
            let Ok(mut root) = root else {
                damaged = Some(id);
                continue;
            };
            is_any_readable = true;
            if !self.selects_in(objects, &mut root) {
                continue;
            }
            if root.source.is_unknown() {
                unknown = Some(root);
            } else {
                sources.add(&root);
                newest = Some(id);
            }
        }
        // An earlier backup is not the latest, whatever its source.
        let is_wanted = newest.is_some() || self.host.is_none() && self.paths.is_empty();
        if let Some(root) = unknown.filter(|root| is_wanted && Some(&root.id) > newest.as_ref()) {
            sources.add(&root);
            newest = Some(root.id);
        }
        if let Some(narrowed) = self.narrowed(&sources) {
            return narrowed.latest(objects);
        }
        self.must_be_one(&sources, objects)?;
        if newest.is_none() && is_any_readable {
            return Err(with_later_backups(objects, self.none_selected(objects)?));
        }
        let lost = counted_lost_roots(objects)?.pop();
        let readable = newest.clone().max(damaged);
        match (readable, lost) {
            (readable, Some(lost)) if readable.as_ref() < Some(&lost) => {
                let message = format!("the root of backup {lost:?} is lost");
                let comparison = newest.map(|newest| format!(", which is later than {newest:?}"));
                Err(lost_root(&format!(
                    "{message}{}",
                    comparison.unwrap_or_default()
                )))
            }
            (Some(id), _) => Ok(id),
            (None, _) => Err(with_later_backups(objects, self.none_selected(objects)?)),
        }
    }

    /// Returns the filter that selects the own source alone, if `sources` has it among others.
    pub(super) fn narrowed(&self, sources: &SourceList) -> Option<Self> {
        let own = self.own.as_ref()?;
        let kin = sources.0.iter().find(|kin| own.is(&kin.source))?;
        let paths = kin.source.paths.iter();
        let narrowed = Self {
            host: Some(own.host.clone()),
            paths: paths
                .map(|path| OsString::from_vec(path.0.clone()))
                .collect(),
            is_exact: true,
            own: None,
            ..self.clone()
        };
        (sources.0.len() > 1).then_some(narrowed)
    }

    /// Refuses backups of several sources.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`]; it lists the sources with the command for each.
    pub fn must_be_one(&self, sources: &SourceList, objects: &Arc<dyn Objects>) -> Result<()> {
        if sources.0.len() < 2 {
            return Ok(());
        }
        let message = format!(
            "cannot tell which backup is meant: {} has backups of {} sources",
            objects.describe(""),
            sources.0.len()
        );
        let error = sources.list(Error::new(ErrorKind::Usage, message), |error, kin| {
            error
                .detail(kin.to_string())
                .detail(format!("    {}", self.way(kin, sources)))
        });
        let options = "choose one with --host, --path or --tag, or a backup with @ID; `fullbore list` shows them";
        let ids = "name a backup by its id; `fullbore list` shows them";
        // Options for hosts and paths would select nothing: the names in the roots are sealed.
        if Sealing::of(&**objects) == Sealing::Locked {
            return Err(error.hint(
                "hosts and paths are encrypted: give --key FILE, which shows and reads them",
            ));
        }
        Err(
            error.hint(if self.retry.has_options || self.retry.words.is_empty() {
                options
            } else {
                ids
            }),
        )
    }

    /// Returns how a user selects this source: the command, or only the end of it.
    fn way(&self, kin: &SourceBackups, all: &SourceList) -> String {
        let line = &self.retry;
        // A later backup with a lost root may be of this source.
        let is_clear = !all.0.iter().any(|kin| kin.source.is_unknown());
        let options = if line.has_options && is_clear {
            self.options(&kin.source, all)
        } else {
            None
        };
        let mut words = line.words.clone();
        match (options, line.from) {
            (Some(options), _) => {
                let end = words
                    .iter()
                    .position(|word| word == "--")
                    .unwrap_or(words.len());
                words.splice(end..end, options);
            }
            (None, Some(from)) => {
                words[from] = named(without_backup(&line.words[from]), &kin.newest)
            }
            (None, None) => words = vec![format!("@{}", kin.newest).into()],
        }
        words
            .iter()
            .map(|word| shell_word(word))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Returns the fewest options that select this source alone among `all`, if possible.
    fn options(&self, source: &SourceInfo, all: &SourceList) -> Option<Vec<OsString>> {
        let host = Some(source.host.clone()).filter(|_| self.host.is_none());
        let paths: Vec<OsString> = source
            .paths
            .iter()
            .map(|path| OsString::from_vec(path.0.clone()))
            .collect();
        // The shortest command first.
        let tries = [(None, &paths[..]), (host.clone(), &[]), (host, &paths[..])];
        let (host, paths) = tries.into_iter().find(|(host, paths)| {
            let filter = Self {
                host: host.clone(),
                paths: paths.to_vec(),
                ..Self::default()
            };
            all.0
                .iter()
                .filter(|kin| filter.selects_source(&kin.source))
                .count()
                == 1
        })?;
        let host = host
            .into_iter()
            .flat_map(|host| [OsString::from("--host"), host.into()]);
        Some(
            host.chain(
                paths
                    .iter()
                    .flat_map(|path| ["--path".into(), path.clone()]),
            )
            .collect(),
        )
    }
}

fn tags_of(filter: &BackupFilter, kin: &SourceBackups) -> String {
    match filter.tags.is_empty() || kin.tags.is_empty() {
        true => String::new(),
        false => format!(
            ", with {}",
            kin.tags.iter().cloned().collect::<Vec<_>>().join(" ")
        ),
    }
}

impl std::fmt::Display for BackupFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = self
            .host
            .iter()
            .map(|host| format!("--host {}", shell_word(OsStr::new(host))));
        let paths = self
            .paths
            .iter()
            .map(|path| format!("--path {}", shell_word(path)));
        let tags = self
            .tags
            .iter()
            .map(|tag| format!("--tag {}", shell_word(OsStr::new(&tag.to_string()))));
        f.write_str(&host.chain(paths).chain(tags).collect::<Vec<_>>().join(" "))
    }
}

/// Refuses a backup as the latest if the root of a later one is damaged or lost.
///
/// # Errors
/// [`ErrorKind::Corrupt`] with the later backup, or the error of its root.
pub fn check_later(objects: &Arc<dyn Objects>, newest: &str) -> Result<()> {
    let later = counted_backups(objects)?.filter(|(id, _)| id.as_str() > newest);
    if let Some((id, Err(error))) = later.filter(|(_, root)| root.is_err()).last() {
        return Err(match error.kind {
            ErrorKind::Corrupt => error
                .detail(format!("backup {id:?} is later than {newest:?}"))
                .hint(ROOT_DAMAGED),
            _ => error,
        });
    }
    match counted_lost_roots(objects)?
        .pop()
        .filter(|lost| lost.as_str() > newest)
    {
        None => Ok(()),
        Some(lost) => Err(lost_root(&format!(
            "the root of backup {lost:?} is lost, which is later than {newest:?}"
        ))),
    }
}

/// The sources of some backups, in the order of their first backups.
#[derive(Debug, Default)]
pub struct SourceList(Vec<SourceBackups>);

#[derive(Debug)]
struct SourceBackups {
    source: SourceInfo,
    backups: usize,
    /// Id and time of the newest.
    newest: String,
    time: String,
    tags: BTreeSet<String>,
}

impl SourceList {
    /// Adds a backup; the oldest come first.
    pub fn add(&mut self, root: &Root) {
        let index = self
            .0
            .iter()
            .position(|kin| kin.source == root.source)
            // A list, no map: sources keep the order in which they first had a backup.
            .unwrap_or_else(|| {
                let (newest, time) = Default::default();
                self.0.push(SourceBackups {
                    source: root.source.clone(),
                    backups: 0,
                    newest,
                    time,
                    tags: BTreeSet::new(),
                });
                self.0.len() - 1
            });
        let kin = &mut self.0[index];
        kin.backups += 1;
        (kin.newest, kin.time) = (root.id.clone(), root.time.clone());
        kin.tags
            .extend(root.tags.iter().map(|(key, value)| match &**value {
                "" => key.clone(),
                _ => format!("{key}={value}"),
            }));
    }

    /// Calls `add` with the error and each source, and notes how many sources are not listed.
    fn list(&self, error: Error, add: impl Fn(Error, &SourceBackups) -> Error) -> Error {
        let error = self.0.iter().take(LISTED_SOURCES).fold(error, add);
        match self.0.len().saturating_sub(LISTED_SOURCES) {
            0 => error,
            more => error.detail(format!("and {more} more sources")),
        }
    }
}

impl std::fmt::Display for SourceBackups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let source = text_of(&self.source);
        match self.backups {
            1 => write!(f, "{source} (1 backup, of {})", self.time),
            n => write!(f, "{source} ({n} backups, the last of {})", self.time),
        }
    }
}

/// Returns the source of a backup for an error message.
pub(super) fn source_of(root: &Root) -> String {
    text_of(&root.source)
}

/// Returns a source for an error message: `host:/a /b`.
fn text_of(source: &SourceInfo) -> String {
    if source.is_unknown() {
        return "an unknown source (its root is lost)".to_owned();
    }
    let paths: Vec<_> = source
        .paths
        .iter()
        .map(|path| String::from_utf8_lossy(&path.0))
        .collect();
    format!("{}:{}", source.host, paths.join(" "))
}

/// Quotes a word for a shell; bytes that are not text, and characters that cannot be seen, are quoted as bash does.
pub fn shell_word(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) if !bytes.is_empty() && bytes.iter().all(is_plain_in_shell) => text.to_owned(),
        Ok(text) if !text.contains('\n') && shown(text) == text => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => {
            format!(
                "$'{}'",
                bytes
                    .iter()
                    .map(|byte| match byte {
                        byte if is_plain_in_shell(byte) => char::from(*byte).to_string(),
                        byte => format!("\\x{byte:02x}"),
                    })
                    .collect::<String>()
            )
        }
    }
}

fn is_plain_in_shell(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+=:,@%^".contains(byte)
}

#[cfg(test)]
mod tests;
