//! Which objects of this machine a backup is of: from paths and rules to sources, one for each device.

use crate::{
    error::{Error, Kind, Result, quoted},
    format::{
        entry::{Path as Relative, is_within, order},
        root,
    },
    platform::{self, Tricks, Waiting, walk, write::is_in_the_way},
    postgres::offline,
    repo::store,
    sink::{is_in, place_of},
    source::{
        patterns::Patterns,
        tree::{Closed, Own, Rules, Top, Tree},
    },
};
use std::{
    collections::HashSet,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What the operator asked for.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Files and directories.
    pub paths: Vec<PathBuf>,
    /// Store them under their whole paths.
    pub full_paths: bool,
    /// Patterns to leave out.
    pub exclude: Vec<String>,
    /// Files with such patterns.
    pub exclude_from: Vec<PathBuf>,
    /// Leave out marked caches.
    pub exclude_caches: bool,
    /// Leave out directories that hold one of these.
    pub exclude_if_present: Vec<String>,
    /// A file with the names to store, or `-`.
    pub files_from: Option<PathBuf>,
    /// Do the names in it end in NUL, not in a line feed?
    pub null: bool,
    /// Stay on the file systems of the paths.
    pub one_file_system: bool,
    /// Does the next backup go by less than the inodes?
    pub looks_twice: bool,
}

/// The sources, and what the root says of them.
pub struct Opened {
    /// One for each device, or one for all.
    pub trees: Vec<Tree>,
    /// Paths, absolute.
    pub paths: Vec<root::Name>,
    /// Is the root of the backup the contents of the one path?
    pub contents: bool,
}

impl Scope {
    /// The options by which something is left out.
    pub fn left_out(&self) -> Vec<String> {
        let each = |name: &str, values: &[String]| -> Vec<String> {
            values.iter().map(|value| format!("{name} {value}")).collect()
        };
        let file = |name: &str, path: &PathBuf| format!("{name} {}", path.display());
        let flags = [(self.exclude_caches, "--exclude-caches"), (self.one_file_system, "--one-file-system")];
        let flags = flags.into_iter().filter(|(given, _)| *given).map(|(_, name)| name.to_owned());
        let lists = self.files_from.iter().map(|path| file("--files-from", path));
        let patterns = each("--exclude", &self.exclude).into_iter();
        let patterns = patterns.chain(self.exclude_from.iter().map(|path| file("--exclude-from", path)));
        lists.chain(patterns).chain(each("--exclude-if-present", &self.exclude_if_present)).chain(flags).collect()
    }

    /// Open everything. `split`: a stream for each device.
    ///
    /// # Errors
    /// [`Kind::Usage`] if two paths would have one name; else the system's.
    pub fn open(&self, split: bool, walkers: usize, tricks: Tricks, own: Own) -> Result<Opened> {
        let rules = Arc::new(self.rules(walkers, tricks, own)?);
        let named = self.named()?;
        let contents = matches!(&named[..], [one] if one.at.is_empty());
        let paths = named.iter().map(|one| root::Name(one.path.as_os_str().as_bytes().to_vec())).collect();
        let trees = match &self.files_from {
            Some(list) => vec![self.listed(list, named, rules)?],
            None => trees(named, split, &rules)?,
        };
        Ok(Opened { trees, paths, contents })
    }

    /// Refuse a PATH that is in the repository that the backup goes to.
    ///
    /// # Errors
    /// [`Kind::Usage`] for the first that is; the system's.
    pub fn keep_out_of(&self, repository: &Path) -> Result<()> {
        let places = store::places(repository);
        for path in &self.paths {
            let (real, is_dir) = absolute(path)?;
            let holder = if is_dir { &real } else { real.parent().unwrap_or(&real) };
            if !is_in(holder, &places) {
                continue;
            }
            let is_all = place_of(&real) == place_of(repository);
            let why = if is_all { "it is where the backup goes" } else { "it is in the repository the backup goes to" };
            return Err(Error::new(Kind::Usage, format!("cannot back up {path:?}: {why}")).hint("choose another --to"));
        }
        Ok(())
    }

    fn rules(&self, walkers: usize, tricks: Tricks, own: Own) -> Result<Rules> {
        Ok(Rules {
            exclude: Patterns::read(&self.exclude, &self.exclude_from)?,
            exclude_caches: self.exclude_caches,
            exclude_if_present: self.exclude_if_present.iter().map(|name| name.as_bytes().to_vec()).collect(),
            one_file_system: self.one_file_system,
            looks_twice: self.looks_twice,
            walkers,
            tricks,
            own,
            overlay: None,
            torn: offline::torn,
        })
    }

    /// Each path with its name in the archive, ascending. One directory alone is the root itself.
    fn named(&self) -> Result<Vec<Named>> {
        let mut named = Vec::new();
        for path in &self.paths {
            let (real, is_dir) = absolute(path)?;
            named.push(Named { at: self.name_of(path, &real, is_dir)?, path: real, is_dir });
        }
        named.sort_by(|a, b| order(&a.at, &b.at));
        named.dedup_by(|b, a| a.at == b.at && a.path == b.path);
        for pair in named.windows(2) {
            if is_within(&pair[1].at, &pair[0].at) && !self.full_paths {
                let what = format!("cannot store two paths as {}", quoted(&pair[1].at));
                let (a, b) = (pair[0].path.display(), pair[1].path.display());
                return Err(Error::new(Kind::Usage, what)
                    .detail(format!("\"{a}\" and \"{b}\" have the same last name"))
                    .hint("use --full-paths, so that each is stored under its whole path"));
            }
        }
        // With whole paths, one within another is stored with that.
        named.dedup_by(|b, a| is_within(&b.at, &a.at));
        Ok(named)
    }

    /// A link to a directory has its own last name, not that of the directory.
    fn name_of(&self, path: &Path, real: &Path, is_dir: bool) -> Result<Relative> {
        if self.full_paths {
            return Ok(real.as_os_str().as_bytes()[1..].to_vec());
        }
        if self.paths.len() == 1 && is_dir {
            return Ok(Vec::new());
        }
        path.file_name().or(real.file_name()).map(|name| name.as_bytes().to_vec()).ok_or_else(|| {
            Error::new(Kind::Usage, "cannot store \"/\" beside other paths").hint("back it up by itself")
        })
    }

    fn listed(&self, list: &Path, named: Vec<Named>, rules: Arc<Rules>) -> Result<Tree> {
        let [Named { at, path, is_dir }] = &named[..] else {
            return Err(Error::new(Kind::Usage, "--files-from takes exactly one PATH, the directory its names are in"));
        };
        let top = open_top(at.clone(), path, *is_dir, false)?;
        if top.name.is_some() || !at.is_empty() {
            return Err(Error::new(Kind::Usage, "with --files-from, PATH is a directory, without --full-paths"));
        }
        Ok(Tree::listed(top, self.names(list)?, rules))
    }

    /// The names in a list, ascending. They are held in memory: a list need not be in order.
    fn names(&self, list: &Path) -> Result<Vec<Relative>> {
        let mut text = Vec::new();
        let read = match list.as_os_str().as_bytes() {
            b"-" => Waiting(std::io::stdin()).read_to_end(&mut text),
            _ => std::fs::File::open(list).and_then(|mut file| file.read_to_end(&mut text)),
        };
        read.map_err(|e| Error::io(format!("could not read the list \"{}\"", list.display()), e))?;
        let end = if self.null { 0 } else { b'\n' };
        if text.iter().all(|c| *c == end) {
            let what = format!("cannot back up what the list \"{}\" names: it is empty", list.display());
            return Err(Error::new(Kind::NotFound, what)
                .hint("has the program that writes it failed? `find` names at least \".\""));
        }
        let names = text.split(|c| *c == end).map(plain).filter(|name| !name.is_empty());
        let mut names: Vec<_> = names.collect();
        if let Some(bad) = names.iter().find(|name| !crate::format::entry::is_safe(name)) {
            let what = format!("cannot store {} of the list", quoted(bad));
            return Err(Error::new(Kind::Usage, what).hint("its names are relative to PATH, without \"..\""));
        }
        names.sort_by(|a, b| order(a, b));
        names.dedup();
        Ok(names)
    }
}

/// A name of a list without what `find` puts around it: `./` before and `/` after.
fn plain(name: &[u8]) -> Relative {
    let parts = name.split(|c| *c == b'/').filter(|part| !part.is_empty() && part != b".");
    let whole = parts.collect::<Vec<_>>().join(&b'/');
    if name.starts_with(b"/") { [b"/", &whole[..]].concat() } else { whole }
}

/// A path with its name in the archive.
struct Named {
    at: Relative,
    path: PathBuf,
    /// Looked at once: another answer later would be about something else.
    is_dir: bool,
}

fn absolute(path: &Path) -> Result<(PathBuf, bool)> {
    let failed = |e| Error::io(format!("could not read \"{}\"", path.display()), e);
    let whole = std::path::absolute(path).map_err(failed)?;
    let clean: PathBuf = whole.components().collect();
    let is_dir = is_dir(&clean).map_err(failed).map_err(|error| match path.as_os_str().as_bytes() {
        b"-" => error.hint("standard input is backed up as a file with a name: use --stdin-name NAME"),
        _ => error,
    })?;
    match is_dir || clean.components().any(|part| part == std::path::Component::ParentDir) {
        true => walk::real_path(&clean).map(|path| (path, is_dir)).map_err(failed),
        false => Ok((clean, false)),
    }
}

/// Is it a directory, or a link to one? A link that leads nowhere is none.
///
/// # Errors
/// The system's: what cannot be looked at now may be one.
fn is_dir(path: &Path) -> io::Result<bool> {
    let there = path.symlink_metadata()?;
    if !there.is_symlink() {
        return Ok(there.is_dir());
    }
    match path.metadata() {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename) => Ok(false),
        Err(e) if is_in_the_way(&e) => Ok(false),
        found => found.map(|found| found.is_dir()),
    }
}

/// Open where a walk begins. A symbolic link that was named itself is followed if it leads to a directory.
fn open_top(at: Relative, path: &Path, is_dir: bool, alone: bool) -> Result<Top> {
    let failed = |e| Error::io(format!("could not open \"{}\"", path.display()), e);
    if is_dir {
        let dir = walk::open_root(path).map_err(failed)?;
        return Ok(Top { at, dir, name: None, alone });
    }
    let dir = walk::open_root(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    Ok(Top { at, dir, name: path.file_name().map(|name| name.as_bytes().to_vec()), alone })
}

/// The trees below the paths: the mounts below them are divided among the devices they are on.
fn trees(named: Vec<Named>, split: bool, rules: &Arc<Rules>) -> Result<Vec<Tree>> {
    let mut division = Division::default();
    for Named { at, path, is_dir } in named {
        let top = open_top(at.clone(), &path, is_dir, false)?;
        let device = walk::stat_fd(&top.dir).map(|stat| stat.dev).unwrap_or_default();
        let device = if split { device } else { 0 };
        let mut parents = parents(&at, &path)?;
        parents.retain(|parent| !division.has(&parent.at));
        division.tops(device).extend(parents.into_iter().chain([top]));
        if is_dir && !rules.one_file_system {
            division.mounts(Met { at, device, kind: String::new() }, &path, split, rules)?;
        }
    }
    let Division { devices, elsewhere, closed } = division;
    Ok(devices.into_iter().map(|(_, tops)| tree(tops, &elsewhere, &closed, rules)).collect())
}

/// Which walks begin on which device, in the order the devices were met.
#[derive(Default)]
struct Division {
    devices: Vec<(u64, Vec<Top>)>,
    elsewhere: HashSet<Relative>,
    closed: Closed,
}

impl Division {
    fn tops(&mut self, device: u64) -> &mut Vec<Top> {
        let at = self.devices.iter().position(|(known, _)| *known == device).unwrap_or_else(|| {
            self.devices.push((device, Vec::new()));
            self.devices.len() - 1
        });
        &mut self.devices[at].1
    }

    /// Does a walk begin there?
    fn has(&self, at: &[u8]) -> bool {
        self.devices.iter().any(|(_, tops)| tops.iter().any(|top| top.at == at))
    }

    /// Does the walk of a device go around `path`? What it does not meet there cannot begin there either: a stream is in order.
    fn surrounds(&self, device: u64, path: &[u8]) -> bool {
        let tops = self.devices.iter().filter(|(known, _)| *known == device).flat_map(|(_, tops)| tops);
        tops.into_iter().any(|top| !top.alone && is_within(path, &top.at))
    }

    /// Place the mounts below one path: each is met by the walk around it, or a walk of its own device begins there.
    fn mounts(&mut self, around: Met, path: &Path, split: bool, rules: &Arc<Rules>) -> Result<()> {
        let at = around.at.clone();
        let whole = tree(vec![open_top(at.clone(), path, true, false)?], &HashSet::new(), &Closed::new(), rules);
        let mut met = vec![around];
        for mount in platform::mounts_below(path).unwrap_or_default() {
            let below = mount.path.strip_prefix(path).unwrap_or(&mount.path).as_os_str().as_bytes();
            let below = if at.is_empty() { below.to_vec() } else { [&at[..], b"/", below].concat() };
            let Some(around) = met.iter().rev().find(|met| is_within(&below, &met.at)) else { continue };
            if platform::is_pseudo(&around.kind) {
                continue;
            }
            if platform::is_automount(&around.kind) {
                self.open_way(&around.at, &below);
            }
            let mut device = around.device;
            if platform::is_pseudo(&mount.kind) || platform::is_automount(&mount.kind) {
                self.closed.entry(below.clone()).or_default();
            } else if split
                && mount.device != device
                && !self.surrounds(mount.device, &below)
                && let Ok(is_dir) = is_dir(&mount.path)
                && !whole.leaves_out(&below, is_dir)
                && let Ok(top) = open_top(below.clone(), &mount.path, is_dir, false)
                // Else it is met like any directory that cannot be entered.
                && walk::stat(&top.dir, top.name.as_deref().unwrap_or(b".")).is_ok()
            {
                device = mount.device;
                self.elsewhere.insert(below.clone());
                self.tops(device).push(top);
            }
            met.push(Met { at: below, device, kind: mount.kind });
        }
        Ok(())
    }

    /// Of the directories from `from`, which is closed, down to `to` deliver the next one on the way.
    fn open_way(&mut self, from: &[u8], to: &[u8]) {
        let mut dir = from.to_vec();
        for name in to[from.len()..].split(|c| *c == b'/').filter(|name| !name.is_empty()) {
            self.closed.entry(dir.clone()).or_default().insert(name.to_vec());
            dir = [&dir[..], b"/", name].concat();
        }
    }
}

/// A file system that a walk meets.
struct Met {
    at: Relative,
    /// Of the walk that comes there.
    device: u64,
    kind: String,
}

fn tree(mut tops: Vec<Top>, elsewhere: &HashSet<Relative>, closed: &Closed, rules: &Arc<Rules>) -> Tree {
    tops.sort_by(|a, b| order(&a.at, &b.at));
    tops.dedup_by(|b, a| b.at == a.at);
    Tree::new(tops, elsewhere.clone(), closed.clone(), rules.clone())
}

/// The directories above a whole path, for themselves.
fn parents(at: &[u8], path: &Path) -> Result<Vec<Top>> {
    let depth = at.iter().filter(|c| **c == b'/').count();
    let above = path.ancestors().skip(1).take(depth);
    above.map(|dir| open_top(dir.as_os_str().as_bytes()[1..].to_vec(), dir, true, true)).collect()
}
