//! Makes the tree of an instant restore, and starts the processes that fill it.

use super::{
    event_table::{EventTable, LINK},
    placeholders::{MadePlaceholders, PG_VERSION, Placeholders, root_name},
    plan_file::{InstantPlan, PlanHead},
    roles::start,
    server::{InstantServer, running_server},
    state_dir::StateDir,
    unit_map::{DURABLE, FINISHED, HERE, MapNumber, Phase, SYNCED, UnitMap},
};
use crate::{
    drill::programs::ServerPrograms,
    restore::{Restore, RestoreInto, Summary, cluster::choose_backup},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::EntryName,
};
use fullbore_platform::{
    metrics::meter::Meter,
    pre_content::{
        EventGroup,
        inherit::{GROUP_LINK, occupy, take_from},
        probe::refusal_in,
    },
    queue::Locked,
};
use fullbore_repository::{
    archive::{Archive, small_file::small_file},
    open::{is_repository, named, place},
};
use fullbore_tree::{incomplete::INCOMPLETE, write::layout::is_vacant};
use rustix::pipe::{PipeFlags, pipe_with};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::Read,
    mem::take,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, chown},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Options of an instant restore.
#[derive(Debug, Clone, Default)]
pub struct InstantOptions {
    /// Whether a server is started on the cluster.
    pub start: bool,
    /// The directory of the server's programs; `None` to look for them.
    pub bindir: Option<PathBuf>,
    /// Programs that read by range; `any` for all.
    pub by_range: Vec<PathBuf>,
    /// Time without progress after which a reader gets an error; `None` for ever.
    pub patience: Option<Duration>,
    /// Bytes a second of content that nobody waits for.
    pub rest_rate: Option<u64>,
}

/// An instant restore that is served.
#[derive(Debug)]
pub struct ServedTree {
    /// Result of the restore of what is not a placeholder; `None` after a resume.
    pub summary: Option<Summary>,
    pub target: PathBuf,
    /// Seconds from the start of the command until the tree was served.
    pub served_seconds: f64,
    /// Seconds until a server accepted connections.
    pub accepting_seconds: Option<f64>,
    pub(super) map: UnitMap,
    pub(super) plan: InstantPlan,
    pub(super) state: StateDir,
    pub(super) begun: Instant,
}

impl Restore {
    /// Makes the whole tree with placeholders, and serves it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the system does not ask before files are read; as [`Restore::run`].
    pub fn begin_instant(&self, options: &InstantOptions, meter: &Meter) -> Result<ServedTree> {
        let begun = Instant::now();
        self.refuse_instant_options()?;
        let state = StateDir::of(&self.to)?;
        check_system(&state)?;
        let archive = choose_backup::open_chosen(self, false)?;
        let major = archive.root.postgres.as_ref().map(|cluster| cluster.major);
        let programs = server_programs(options, major)?;
        let lock = state.create()?;
        let made = self.make_tree(&state, archive, meter);
        let (group, plan, map, summary) = made.inspect_err(|_| discard(&state))?;
        let table = EventTable::new().map_err(events_error)?;
        map.set_number(MapNumber::Hold, options.start.into());
        let parts = ServedParts {
            state,
            plan,
            map,
            lock,
            group,
            table,
        };
        let mut served = parts.serve(begun)?;
        served.summary = Some(summary);
        served.with_server(programs, major)
    }

    /// Goes on with an instant restore whose processes have ended.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Exists`] if it is served; the system's.
    pub fn resume_instant(&self, options: &InstantOptions) -> Result<ServedTree> {
        let begun = Instant::now();
        let state = StateDir::of(&self.to)?;
        let lock = state.lock()?;
        check_system(&state)?;
        let plan = InstantPlan::read(&state)?;
        let map = UnitMap::open(&state, &plan)?;
        let server = running_server(&state.target);
        let held = server.map(|id| held_by(id, &state)).transpose()?;
        let major = plan.head.cluster;
        let programs = server_programs(options, major.filter(|_| server.is_none()))?;
        // First, a tree whose readers would see zeros is hidden.
        if major.is_none() && !state.hidden.exists() {
            let hidden = fs::rename(&state.target, &state.hidden);
            hidden.map_err(|e| state.error("hide the target of", e))?;
        }
        map.settle_boot(&plan);
        map.set_phase(Phase::Serving);
        let (group, table) = match held {
            Some(held) => held,
            None => (
                mark_again(&plan, &map)?,
                EventTable::new().map_err(events_error)?,
            ),
        };
        map.set_number(MapNumber::Hold, programs.is_some().into());
        let parts = ServedParts {
            state,
            plan,
            map,
            lock,
            group,
            table,
        };
        parts.serve(begun)?.with_server(programs, major)
    }

    fn refuse_instant_options(&self) -> Result<()> {
        let is_part = !self.paths.is_empty()
            || !self.patterns.include.is_empty()
            || !self.patterns.exclude.is_empty();
        let why = if is_part {
            "it restores the whole backup, without PATHs and patterns"
        } else if !matches!(self.into, RestoreInto::Empty) {
            "it needs an empty target, without --overwrite, --delta and --mirror"
        } else if self.from == "-" {
            "it reads the backup in any order, and a stream has one"
        } else if self.keep_going {
            "a damaged part is an error for its readers, without --keep-going"
        } else {
            return Ok(());
        };
        let message = "cannot restore with --instant";
        Err(Error::new(ErrorKind::Usage, message).because(why))
    }

    /// Makes everything but the content of placeholders.
    fn make_tree(
        &self,
        state: &StateDir,
        archive: Archive,
        meter: &Meter,
    ) -> Result<(EventGroup, InstantPlan, UnitMap, Summary)> {
        let cluster = archive.root.postgres.as_ref().map(|cluster| cluster.major);
        let mut restore = self.clone();
        if cluster.is_none() {
            check_can_rename(state)?;
            restore.to.clone_from(&state.hidden);
        }
        let source = source_word(&self.from, &archive.root.id)?;
        let top_mtime = top_mtime(&archive)?;
        let contents = withheld_contents(&archive, cluster.is_some())?;
        let group = Arc::new(EventGroup::new().map_err(events_error)?);
        let placeholders = Arc::new(Placeholders {
            group: group.clone(),
            is_cluster: cluster.is_some(),
            made: Default::default(),
        });
        let backup = archive.root.id.clone();
        let summary = restore.run_deferring(archive, meter, Some(placeholders.clone()))?;
        let mut made = take(&mut *placeholders.made.locked());
        drop(placeholders);
        write_notice(&restore.to, self)?;
        for withheld in &mut made.withheld {
            let found = contents.iter().find(|(path, _)| *path == withheld.path.0);
            withheld.content = EntryName(
                found
                    .map(|(_, content)| content.clone())
                    .unwrap_or_default(),
            );
        }
        let head = PlanHead {
            source: EntryName(source.as_bytes().to_vec()),
            backup,
            cluster,
            top_mtime,
            roots: roots_of(state, &made)?,
            withheld: made.withheld,
            files: made.files.len() as u32,
            early_bytes: meter.bytes.load(std::sync::atomic::Ordering::Relaxed),
        };
        let plan = InstantPlan {
            head,
            files: made.files,
        };
        plan.write(state)?;
        let map = UnitMap::open(state, &plan)?;
        map.begin(&plan);
        made.holes
            .iter()
            .for_each(|unit| map.set(*unit, HERE | SYNCED | DURABLE));
        let group = Arc::into_inner(group)
            .ok_or_else(|| Error::new(ErrorKind::Bug, "the event group is still in use"))?;
        Ok((group, plan, map, summary))
    }
}

/// Everything that a guardian needs.
struct ServedParts {
    state: StateDir,
    plan: InstantPlan,
    map: UnitMap,
    lock: File,
    group: EventGroup,
    table: EventTable,
}

impl ServedParts {
    /// Starts the guardian, and waits until it serves. Then a tree gets its name.
    fn serve(self, begun: Instant) -> Result<ServedInstant> {
        let failed = |e| Error::io("could not start the guardian", e);
        let (ready, guardian_ready) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let log = self.state.log()?;
        start(
            "guardian",
            [
                &self.group,
                self.table.memory(),
                &self.lock,
                &guardian_ready,
            ],
            log.into(),
        )
        .map_err(failed)?;
        drop(guardian_ready);
        // The lock is that of the guardian from now on.
        drop(self.lock);
        wait_until_served(ready, &self.state)?;
        if self.plan.head.cluster.is_none() {
            let renamed = fs::rename(&self.state.hidden, &self.state.target);
            renamed.map_err(|e| self.state.error("name the target of", e))?;
        }
        Ok(ServedInstant {
            group: self.group,
            table: self.table,
            tree: ServedTree {
                summary: None,
                target: self.state.target.clone(),
                served_seconds: begun.elapsed().as_secs_f64(),
                accepting_seconds: None,
                map: self.map,
                plan: self.plan,
                state: self.state,
                begun,
            },
        })
    }
}

/// A served tree, with what a server inherits.
struct ServedInstant {
    group: EventGroup,
    table: EventTable,
    tree: ServedTree,
}

impl std::ops::Deref for ServedInstant {
    type Target = ServedTree;
    fn deref(&self) -> &ServedTree {
        &self.tree
    }
}

impl std::ops::DerefMut for ServedInstant {
    fn deref_mut(&mut self) -> &mut ServedTree {
        &mut self.tree
    }
}

impl ServedInstant {
    /// Starts a server, if its programs were asked for.
    fn with_server(
        self,
        programs: Option<ServerPrograms>,
        major: Option<u32>,
    ) -> Result<ServedTree> {
        let Self {
            group,
            table,
            mut tree,
        } = self;
        if let (Some(programs), Some(major)) = (programs, major) {
            let server = InstantServer::new(programs, major, &tree.target);
            let started = server.and_then(|server| server.start(&group, &table));
            tree.map.set_number(MapNumber::Hold, 0);
            started.map_err(|e| {
                e.hint("the files are served all the same: start the server when it can start")
            })?;
            tree.accepting_seconds = Some(tree.begun.elapsed().as_secs_f64());
        }
        Ok(tree)
    }
}

/// Refuses where the system does not ask before files are read.
fn check_system(state: &StateDir) -> Result<()> {
    let place = if state.target.is_dir() {
        &state.target
    } else {
        fullbore_platform::place::dir_of(&state.target)
    };
    let refusal =
        refusal_in(place).map_err(|e| Error::io(format!("could not look at {place:?}"), e))?;
    let Some(refusal) = refusal else {
        return Ok(());
    };
    let message = "cannot restore with --instant";
    Err(Error::new(ErrorKind::Unsupported, message)
        .because(format!("it needs {}", refusal.line()))
        .hint("`fullbore mount` shows the backup as a directory at once; a restore without --instant needs none of these"))
}

/// Refuses a tree that could not get its name.
fn check_can_rename(state: &StateDir) -> Result<()> {
    let target = &state.target;
    let not_empty = |why: &str| {
        let message = format!("cannot restore to {target:?} with --instant");
        Err(Error::new(ErrorKind::Exists, message).because(why.to_owned()))
    };
    if !is_vacant(target)? {
        return not_empty("it is not empty");
    }
    let Ok(found) = fs::symlink_metadata(target) else {
        return Ok(());
    };
    let failed = |e| Error::io(format!("could not look at {target:?}"), e);
    let above = fs::metadata(fullbore_platform::place::dir_of(target)).map_err(failed)?;
    let is_plain = found.is_dir()
        && found.dev() == above.dev()
        && fs::read_dir(target).map_err(failed)?.next().is_none();
    if is_plain {
        Ok(())
    } else {
        not_empty("it is a mount point or a link; name a directory below it")
    }
}

fn server_programs(options: &InstantOptions, major: Option<u32>) -> Result<Option<ServerPrograms>> {
    match (options.start, major) {
        (false, _) => Ok(None),
        (true, Some(major)) => InstantServer::programs(major, options.bindir.as_deref()).map(Some),
        (true, None) => {
            let message = "cannot start a server on this backup";
            Err(Error::new(ErrorKind::Usage, message)
                .because("it is not a cluster, or its server runs"))
        }
    }
}

/// Returns the name under which a worker opens the backup.
fn source_word(from: &OsStr, id: &str) -> Result<OsString> {
    if !is_repository(from) {
        return Ok(from.to_owned());
    }
    let (_, selector) = place(from)?;
    let bytes = from.as_bytes();
    let end = selector.map_or(bytes.len(), |selector| {
        bytes.len().saturating_sub(selector.len() + 1)
    });
    Ok(named(OsStr::from_bytes(&bytes[..end]), id))
}

fn top_mtime(archive: &Archive) -> Result<(i64, u32)> {
    let top = archive.find(b"")?;
    let mtime = top.first().map(|item| item.entry.mtime).unwrap_or_default();
    Ok((mtime.seconds, mtime.nanos))
}

/// Returns the content of the files that are withheld, by their paths.
fn withheld_contents(archive: &Archive, is_cluster: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    if !is_cluster {
        return Ok(Vec::new());
    }
    let mut paths = vec![PG_VERSION.to_vec()];
    for database in archive.children(b"base") {
        paths.push([&database?.path[..], b"/", PG_VERSION].concat());
    }
    let content = |path: Vec<u8>| match small_file(archive, &path) {
        Ok(found) => found.map(|(_, content)| Ok((path, content))),
        Err(error) => Some(Err(error)),
    };
    paths.into_iter().filter_map(content).collect()
}

/// Returns a directory of each file system that has placeholders.
fn roots_of(state: &StateDir, made: &MadePlaceholders) -> Result<Vec<EntryName>> {
    let own = fs::metadata(&state.path)
        .map_err(|e| state.error("look at", e))?
        .dev();
    let mut roots = vec![root_name(&state.path)];
    // The tree itself is renamed, but lies beside the state.
    let others = made.roots.iter().filter(|(dev, _)| **dev != own);
    roots.extend(others.map(|(_, directory)| root_name(directory)));
    Ok(roots)
}

/// Writes the file that says that the tree is not complete, and how to go on.
fn write_notice(top: &Path, restore: &Restore) -> Result<()> {
    let text = format!(
        "This directory is not completely restored. While `fullbore restore … --instant` serves it, its files can be used.\n\
         To see how far it is: fullbore restore {from} --instant --to {to} --status\n\
         To go on after a restart of the machine: fullbore restore {from} --instant --to {to} --resume\n",
        from = restore.from.display(),
        to = restore.to.display(),
    );
    let path = top.join(INCOMPLETE);
    let written = fs::write(&path, text).and_then(|()| {
        let owner = fs::metadata(top)?;
        chown(&path, Some(owner.uid()), Some(owner.gid()))
    });
    written.map_err(|e| Error::io(format!("could not write {path:?}"), e))
}

/// Waits until the guardian closes the pipe. An error of the guardian is the text in the pipe.
fn wait_until_served(ready: OwnedFd, state: &StateDir) -> Result<()> {
    let mut said = String::new();
    let read = File::from(ready).read_to_string(&mut said);
    read.map_err(|e| Error::io("could not wait for the guardian", e))?;
    if said == super::SERVING {
        return Ok(());
    }
    let error = Error::new(ErrorKind::System, "could not serve the restored files");
    let why = Some(said)
        .filter(|said| !said.is_empty())
        .or_else(|| state.last_log_line());
    let error = why.into_iter().fold(error, Error::detail);
    Err(error.hint("run the same command with --resume"))
}

/// Removes what a restore made that failed before it was served.
fn discard(state: &StateDir) {
    let _ = fs::remove_dir_all(&state.hidden);
    let _ = state.remove();
}

/// Takes the group and the events out of a server that inherited them.
fn held_by(server: i32, state: &StateDir) -> Result<(EventGroup, EventTable)> {
    let taken =
        take_from(server, GROUP_LINK).and_then(|group| Ok((group, take_from(server, LINK)?)));
    let taken = taken.map_err(|e| {
        Error::io(
            format!("could not take the events out of server {server}"),
            e,
        )
    })?;
    let (Some(group), Some(events)) = taken else {
        let message = format!(
            "cannot go on with {:?}: server {server} runs on it",
            state.target
        );
        return Err(Error::new(ErrorKind::Exists, message)
            .because("nobody asks for its reads, so it may have read zeros for content")
            .hint("stop the server, and run the same command again"));
    };
    let table = EventTable::of_fd(events).map_err(events_error)?;
    Ok((EventGroup::from(group), table))
}

/// Marks all files that are not finished.
fn mark_again(plan: &InstantPlan, map: &UnitMap) -> Result<EventGroup> {
    let group = EventGroup::new().map_err(events_error)?;
    let roots = super::worker::open_roots(&plan.head.roots)?;
    for (index, file) in plan.files.iter().enumerate() {
        if map.flags(index) & FINISHED != 0 {
            continue;
        }
        let Some(root) = roots.get(&file.dev) else {
            continue;
        };
        let marked = match file.handle().open(root) {
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()) => Ok(()),
            Err(e) => Err(e),
            Ok(opened) => group.mark(opened),
        };
        let path = || fullbore_format::error::quoted(&file.path.0);
        marked.map_err(|e| Error::io(format!("could not mark {}", path()), e))?;
    }
    Ok(group)
}

/// Makes sure that no new event gets the number of one that a dead process had read.
pub(super) fn occupy_numbers(table: &mut EventTable) -> Result<Vec<OwnedFd>> {
    let numbers: Vec<_> = table.orphans().iter().map(|orphan| orphan.number).collect();
    occupy(&numbers).map_err(events_error)
}

pub(super) fn events_error(error: std::io::Error) -> Error {
    Error::io("could not ask for the reads of files", error)
}
