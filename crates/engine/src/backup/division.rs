//! Decides where the walks of a backup start: each file system below a PATH gets its own stream if
//! several streams are possible.

use super::named_paths::NamedPath;
use fullbore_format::{
    entry::{EntryPath, is_within, order},
    error::{Error, Result},
};
use fullbore_platform as platform;
use fullbore_platform::{FileSystemMount, dir};
use fullbore_tree::read::{Closed, SourceTree, Top, TopRole, TreeRules};
use std::{collections::HashSet, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

/// Returns the trees of the PATHs; the mounts below them are divided among their devices.
///
/// # Errors
/// If a PATH cannot be opened, or a parent directory of a PATH that is stored under its full path.
pub(crate) fn divide_trees(
    named: &[NamedPath],
    split: bool,
    rules: &Arc<TreeRules>,
) -> Result<Vec<SourceTree>> {
    let mut division = Division::default();
    named
        .iter()
        .try_for_each(|one| division.add_path(one, split, rules))?;
    let Division {
        devices,
        elsewhere,
        closed,
        ..
    } = division;
    Ok(devices
        .into_iter()
        .map(|(_, tops)| source_tree(tops, &elsewhere, &closed, rules))
        .collect())
}

/// Opens the start of a walk. A symbolic link that the user named is followed if it points to a
/// directory.
pub(crate) fn open_top(at: EntryPath, path: &Path, is_dir: bool, role: TopRole) -> Result<Top> {
    let failed = |e| Error::io(format!("could not open {path:?}"), e);
    if is_dir {
        let dir = dir::open_root(path).map_err(failed)?;
        return Ok(Top {
            at,
            dir,
            name: None,
            role,
        });
    }
    let dir = dir::open_root(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    Ok(Top {
        at,
        dir,
        name: path.file_name().map(|name| name.as_bytes().to_vec()),
        role,
    })
}

/// The starts of walks by device, in the order in which the devices were found.
#[derive(Default)]
struct Division {
    devices: Vec<(u64, Vec<Top>)>,
    elsewhere: HashSet<EntryPath>,
    closed: Closed,
    met: Vec<MountMet>,
}

/// A PATH or a mount point that a walk reaches.
#[derive(Clone)]
struct MountMet {
    at: EntryPath,
    /// The device of the walk that reaches it.
    device: u64,
    kind: String,
}

impl Division {
    /// Adds a PATH. Outer PATHs must be added before the PATHs inside them.
    fn add_path(
        &mut self,
        NamedPath { at, name, place }: &NamedPath,
        split: bool,
        rules: &Arc<TreeRules>,
    ) -> Result<()> {
        let top = open_top(at.clone(), &place.real, place.is_dir, TopRole::Named)?;
        let own = dir::stat_fd(&top.dir)
            .map(|stat| stat.dev)
            .unwrap_or_default();
        let own = if split { own } else { 0 };
        let device = self.innermost(at).map_or(own, |met| met.device);
        for above in parent_tops(at, name)? {
            if !self.has_top(&above.at) {
                let device = self.innermost(&above.at).map_or(device, |met| met.device);
                self.tops_on(device).push(above);
            }
        }
        match self
            .devices
            .iter_mut()
            .flat_map(|(_, tops)| tops)
            .find(|top| top.at == *at)
        {
            Some(mount) => mount.role = TopRole::Named,
            None => self.tops_on(device).push(top),
        }
        // A path that is named is entered, also where another PATH leaves it out.
        self.closed.remove(at);
        self.met.push(MountMet {
            at: at.clone(),
            device,
            kind: String::new(),
        });
        if place.is_dir && !rules.files.one_file_system {
            self.add_mounts(at, &place.real, split, rules)?;
        }
        Ok(())
    }

    fn tops_on(&mut self, device: u64) -> &mut Vec<Top> {
        let position = self
            .devices
            .iter()
            .position(|(known, _)| *known == device)
            .unwrap_or_else(|| {
                self.devices.push((device, Vec::new()));
                self.devices.len() - 1
            });
        &mut self.devices[position].1
    }

    /// Returns whether a walk starts at this path.
    fn has_top(&self, at: &[u8]) -> bool {
        self.devices
            .iter()
            .any(|(_, tops)| tops.iter().any(|top| top.at == at))
    }

    /// Returns the innermost PATH or mount point that contains `path`.
    fn innermost(&self, path: &[u8]) -> Option<&MountMet> {
        self.met
            .iter()
            .filter(|met| is_within(path, &met.at))
            .max_by_key(|met| met.at.len())
    }

    /// Returns whether the walk of a device passes around `path`. Then no other walk of that device
    /// can start inside, because the entries of a stream are in order.
    fn passes_around(&self, device: u64, path: &[u8]) -> bool {
        let tops = self
            .devices
            .iter()
            .filter(|(known, _)| *known == device)
            .flat_map(|(_, tops)| tops);
        tops.into_iter()
            .any(|top| top.role != TopRole::Above && is_within(path, &top.at))
    }

    /// Assigns the mounts below one PATH: the surrounding walk enters the mount, or a walk of the
    /// mount's own device starts there.
    fn add_mounts(
        &mut self,
        at: &[u8],
        path: &Path,
        split: bool,
        rules: &Arc<TreeRules>,
    ) -> Result<()> {
        let top = open_top(at.to_vec(), path, true, TopRole::Named)?;
        let whole = source_tree(vec![top], &HashSet::new(), &Closed::new(), rules);
        for mount in platform::mounts_below(path).unwrap_or_default() {
            let inner = path_in_archive(at, path, &mount.path);
            let Some(around) = self.innermost(&inner).cloned() else {
                continue;
            };
            // If one PATH contains another, the outer one has handled this mount already.
            if around.at == inner || platform::is_pseudo(&around.kind) {
                continue;
            }
            if platform::is_automount(&around.kind) {
                self.open_path_to(&around.at, &inner);
            }
            let mut device = around.device;
            if platform::is_pseudo(&mount.kind) || platform::is_automount(&mount.kind) {
                self.closed.entry(inner.clone()).or_default();
            } else if split
                && mount.device != device
                && let Some(top) = self.top_of_mount(&mount, &inner, &whole)
            {
                device = mount.device;
                self.elsewhere.insert(inner.clone());
                self.tops_on(device).push(top);
            }
            self.met.push(MountMet {
                at: inner,
                device,
                kind: mount.kind,
            });
        }
        Ok(())
    }

    /// Opens a mount for a walk of its own. Returns `None` if the surrounding walk is to handle it,
    /// such as a mount that is excluded or unreadable.
    fn top_of_mount(
        &self,
        mount: &FileSystemMount,
        below: &[u8],
        whole: &SourceTree,
    ) -> Option<Top> {
        if self.passes_around(mount.device, below) {
            return None;
        }
        let is_dir = mount.path.metadata().ok()?.is_dir();
        if whole.leaves_out(below, is_dir) {
            return None;
        }
        let top = open_top(below.to_vec(), &mount.path, is_dir, TopRole::Mounted).ok()?;
        let name = top.name.as_deref().unwrap_or(b".");
        dir::stat(&top.dir, name).is_ok().then_some(top)
    }

    /// Of a directory that must not be listed, delivers only the next step towards `to`, at each
    /// level from `from` on.
    fn open_path_to(&mut self, from: &[u8], to: &[u8]) {
        let mut dir = from.to_vec();
        for name in to[from.len()..]
            .split(|c| *c == b'/')
            .filter(|name| !name.is_empty())
        {
            self.closed
                .entry(dir.clone())
                .or_default()
                .insert(name.to_vec());
            dir = [&dir[..], b"/", name].concat();
        }
    }
}

/// Returns the path in the archive of a mount below `path`, which is stored as `at`.
fn path_in_archive(at: &[u8], path: &Path, mount: &Path) -> EntryPath {
    let rest = mount.strip_prefix(path).unwrap_or(mount);
    let rest = rest.as_os_str().as_bytes();
    if at.is_empty() {
        rest.to_vec()
    } else {
        [at, b"/", rest].concat()
    }
}

fn source_tree(
    mut tops: Vec<Top>,
    elsewhere: &HashSet<EntryPath>,
    closed: &Closed,
    rules: &Arc<TreeRules>,
) -> SourceTree {
    tops.sort_by(|a, b| order(&a.at, &b.at));
    SourceTree::new(tops, elsewhere.clone(), closed.clone(), rules.clone())
}

/// Returns the parent directories of a full path.
fn parent_tops(at: &[u8], path: &Path) -> Result<Vec<Top>> {
    let depth = at.iter().filter(|c| **c == b'/').count();
    let parents = path.ancestors().skip(1).take(depth);
    parents
        .map(|dir| {
            open_top(
                dir.as_os_str().as_bytes()[1..].to_vec(),
                dir,
                true,
                TopRole::Above,
            )
        })
        .collect()
}
