//! Turns the paths and rules of the user into sources, one for each device.

pub use super::named_paths::{source_path, warning_of};
use super::{
    division::{divide_trees, open_top},
    named_paths::{FoundPath, NamedPath, links_within, name_paths},
};
use fullbore_format::{
    entry::{EntryPath, order},
    error::{Error, ErrorKind, Result, quoted},
    root,
};
use fullbore_pipeline::sink::{is_in, place_of};
use fullbore_platform::BlockedCalls;
use fullbore_postgres::stopped;
use fullbore_repository::writer;
use fullbore_tree::{
    file_rules::FileRules,
    incomplete::refuse_incomplete,
    patterns::{PatternPlace, Patterns},
    read::{ExclusionListener, Own, SourceTree, TopRole, TreeRules},
};
use std::{
    ffi::OsStr,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Which files are backed up.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Files and directories; one directory alone: its contents are the root of the backup.
    pub paths: Vec<PathBuf>,
    /// Which of them are left out.
    pub rules: FileRules,
    /// File with the only names to back up, one a line; `-` for standard input.
    pub files_from: Option<PathBuf>,
    /// Whether the names of `files_from` end in NUL.
    pub null: bool,
    /// Whether each path is stored under its whole path.
    pub full_paths: bool,
    /// Whether the next backup compares less than the inodes.
    pub looks_twice: bool,
    /// Called with each path that a pattern excludes, and the pattern.
    pub on_excluded: Option<ExclusionListener>,
}

/// The opened sources and their description for the root.
pub struct OpenedPaths {
    /// The trees: one for each device, or one for all.
    pub trees: Vec<SourceTree>,
    /// The absolute paths.
    pub paths: Vec<root::EntryName>,
    /// Whether the root of the backup is the content of the only path.
    pub contents: bool,
    /// The rules of the walks. After the scans they know the patterns that matched nothing.
    pub rules: Arc<TreeRules>,
    /// Warnings about PATHs.
    pub warnings: Vec<String>,
}

/// Returns an option with its value, which may be no text.
fn option_text(name: &str, value: &OsStr) -> String {
    match value.to_str() {
        Some(text) => format!("{name} {text}"),
        None => format!("{name} {}", value.as_bytes().escape_ascii()),
    }
}

impl Scope {
    /// Returns the options that exclude entries.
    pub fn left_out(&self) -> Vec<String> {
        let rules = &self.rules;
        let list = self.files_from.iter();
        let mut options: Vec<_> = list
            .map(|path| option_text("--files-from", path.as_os_str()))
            .collect();
        for (name, values) in [
            ("--exclude", &rules.exclude),
            ("--exclude-from", &rules.exclude_from),
            ("--exclude-if-present", &rules.exclude_if_present),
        ] {
            options.extend(values.iter().map(|value| option_text(name, value)));
        }
        let flags = [
            (rules.exclude_caches, "--exclude-caches"),
            (rules.one_file_system, "--one-file-system"),
        ];
        let given = flags.into_iter().filter(|(is_given, _)| *is_given);
        options.extend(given.map(|(_, name)| name.to_owned()));
        options
    }

    /// Opens all paths. With `split`, each device gets its own stream.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if two paths would get the same name; errors of the system.
    pub fn open(&self, split: bool, walkers: usize, own: Own) -> Result<OpenedPaths> {
        let named = name_paths(&self.paths, self.full_paths)?;
        self.paths
            .iter()
            .try_for_each(|path| refuse_incomplete(path))?;
        let patterns = self.patterns(&named)?;
        let rules = Arc::new(self.tree_rules(patterns, walkers, own));
        let contents = matches!(&named[..], [one] if one.at.is_empty());
        let paths = named
            .iter()
            .map(|one| root::EntryName(one.name.as_os_str().as_bytes().to_vec()))
            .collect();
        let trees = match &self.files_from {
            Some(list) => vec![self.listed_tree(list, &named, rules.clone())?],
            None => divide_trees(&named, split, &rules)?,
        };
        let warnings = warnings(&named, &trees);
        Ok(OpenedPaths {
            trees,
            paths,
            contents,
            rules,
            warnings,
        })
    }

    /// Refuses a source that is the directory of the volumes: it is left out of the backup.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`]; those of [`FoundPath::of`].
    pub(super) fn check_is_not(&self, volumes: &Path) -> Result<()> {
        for path in &self.paths {
            let FoundPath { real, .. } = FoundPath::of(path)?;
            if place_of(&real).is_some_and(|place| Some(place) == place_of(volumes)) {
                let message = format!("cannot back up {path:?}: the volumes are written there");
                return Err(Error::new(ErrorKind::Usage, message).hint(
                    "write them into a directory of their own, which is left out of the backup",
                ));
            }
        }
        Ok(())
    }

    /// Refuses a PATH inside the repository that the backup is written to.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for the first of these; errors of the system.
    pub fn check_outside(&self, repository: &Path) -> Result<()> {
        let places = writer::places(repository);
        for path in &self.paths {
            let FoundPath { real, is_dir, .. } = FoundPath::of(path)?;
            let holder = if is_dir {
                &real
            } else {
                real.parent().unwrap_or(&real)
            };
            if !is_in(holder, &places) {
                continue;
            }
            let is_all = place_of(&real) == place_of(repository);
            let why = if is_all {
                "it is the destination of the backup"
            } else {
                "it is inside the destination repository"
            };
            return Err(
                Error::new(ErrorKind::Usage, format!("cannot back up {path:?}: {why}"))
                    .hint("choose another --to"),
            );
        }
        Ok(())
    }

    fn patterns(&self, named: &[NamedPath]) -> Result<Patterns> {
        let below_root = |path: &Path| path.as_os_str().as_bytes()[1..].to_vec();
        let place = |NamedPath { at, name, place }: &NamedPath| PatternPlace {
            names: vec![
                below_root(&place.name),
                below_root(name),
                below_root(&place.real),
            ],
            at: at.clone(),
        };
        let places: Vec<_> = named
            .iter()
            .filter(|one| one.place.is_dir)
            .map(place)
            .collect();
        self.rules.patterns(&places)
    }

    fn tree_rules(&self, exclude: Patterns, walkers: usize, own: Own) -> TreeRules {
        TreeRules {
            files: self.rules.clone(),
            exclude,
            looks_twice: self.looks_twice,
            on_excluded: self.on_excluded,
            caches: Default::default(),
            walkers,
            own,
            overlay: None,
            torn: stopped::live_server_reason,
        }
    }

    fn listed_tree(
        &self,
        list: &Path,
        named: &[NamedPath],
        rules: Arc<TreeRules>,
    ) -> Result<SourceTree> {
        let [NamedPath { at, place, .. }] = named else {
            return Err(Error::new(
                ErrorKind::Usage,
                "--files-from takes exactly one PATH, the directory that its names are relative to",
            ));
        };
        let top = open_top(at.clone(), &place.real, place.is_dir, TopRole::Named)?;
        if top.name.is_some() || !at.is_empty() {
            return Err(Error::new(
                ErrorKind::Usage,
                "with --files-from, PATH must be a directory, and --full-paths is not allowed",
            ));
        }
        Ok(SourceTree::listed(top, self.listed_names(list)?, rules))
    }

    /// Returns the names of a list, in ascending order. They are held in memory because a list need
    /// not be sorted.
    fn listed_names(&self, list: &Path) -> Result<Vec<EntryPath>> {
        let mut text = Vec::new();
        let read = match list.as_os_str().as_bytes() {
            b"-" => BlockedCalls(std::io::stdin()).read_to_end(&mut text),
            _ => std::fs::File::open(list).and_then(|mut file| file.read_to_end(&mut text)),
        };
        read.map_err(|e| Error::io(format!("could not read the list \"{}\"", list.display()), e))?;
        let end = if self.null { 0 } else { b'\n' };
        if text.iter().all(|c| *c == end) {
            let message = format!(
                "cannot back up the names in the list \"{}\": it is empty",
                list.display()
            );
            return Err(Error::new(ErrorKind::NotFound, message)
                .hint("check whether the program that writes the list failed; `find` lists at least \".\""));
        }
        let names = text
            .split(|c| *c == end)
            .map(trim_listed)
            .filter(|name| !name.is_empty());
        let mut names: Vec<_> = names.collect();
        if let Some(bad) = names
            .iter()
            .find(|name| !fullbore_format::entry::is_safe(name))
        {
            let message = format!("cannot store {} from the list", quoted(bad));
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("names in the list must be relative to PATH, without \"..\""));
        }
        names.sort_by(|a, b| order(a, b));
        names.dedup();
        Ok(names)
    }
}

/// Removes the parts that `find` adds to a name: `./` before and `/` after.
fn trim_listed(name: &[u8]) -> EntryPath {
    let parts = name
        .split(|c| *c == b'/')
        .filter(|part| !part.is_empty() && part != b".");
    let whole = parts.collect::<Vec<_>>().join(&b'/');
    if name.starts_with(b"/") {
        [b"/", &whole[..]].concat()
    } else {
        whole
    }
}

/// Returns warnings about ignored marker files, and about links that are stored as directories.
fn warnings(named: &[NamedPath], trees: &[SourceTree]) -> Vec<String> {
    let mut warnings = Vec::new();
    for one in named.iter().filter(|one| one.place.is_dir) {
        let name = &one.name;
        if let Some(mark) = trees
            .iter()
            .find_map(|tree| tree.exclusion_mark_at(&one.at))
        {
            let mark = quoted(mark);
            warnings.push(format!(
                "{name:?} contains {mark} and is backed up all the same: markers exclude only directories below a PATH"
            ));
        }
    }
    for link in links_within(named) {
        let name = &link.name;
        warnings.push(format!(
            "{name:?} is a link and is stored as the directory that it points to, because it was named as a PATH"
        ));
    }
    warnings
}
