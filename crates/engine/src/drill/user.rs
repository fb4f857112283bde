//! The user that the server of a drill runs as: never root.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{child_environment::without_secrets, owner::OwnerNames, user};
use std::{
    env, fs,
    fs::{DirBuilder, Metadata},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, chown, lchown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

/// The user of servers on most hosts.
const POSTGRES: &str = "postgres";

/// A user and its group.
#[derive(Debug, Clone)]
pub(crate) struct ServerUser {
    uid: u32,
    gid: u32,
    /// Empty if the system has no name for it.
    pub(crate) name: String,
    /// Whether this process is root, and gives the server another user.
    is_other: bool,
}

impl ServerUser {
    /// Returns the user that is known before the restore: this one; for root `postgres` of this host, if there is one.
    pub(crate) fn of_host() -> Option<Self> {
        let names = OwnerNames::default();
        let (uid, gid) = user();
        if uid != 0 {
            return Some(Self::new(&names, (uid, gid), false));
        }
        let found = names.uid(POSTGRES).zip(names.gid(POSTGRES))?;
        Some(Self::new(&names, found, true))
    }

    /// Returns the owner of the restored files, for root on a host without a user `postgres`.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if that is root, or the files cannot be read.
    pub(crate) fn of_files(data: &Path) -> Result<Self> {
        let found = owner_of(data)?;
        Ok(Self::new(&OwnerNames::default(), found, true))
    }

    /// Numbers of the user and of its group.
    pub(crate) fn ids(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    fn new(names: &OwnerNames, (uid, gid): (u32, u32), is_other: bool) -> Self {
        Self {
            uid,
            gid,
            name: names.user(uid).to_string(),
            is_other,
        }
    }

    /// Checks that the user may run the server's program and reach the scratch directory.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`], the system's.
    pub(crate) fn check_reach(&self, program: &Path, top: &Path) -> Result<()> {
        let mut command = self.command(program);
        let run = command.arg("--version").current_dir(top).output();
        let message = format!("user {:?} cannot run {program:?} in {top:?}", self.name);
        match run {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                Err(Error::new(ErrorKind::System, message).because(output.status.to_string()))
            }
            Err(error) => Err(Error::io(message, error)
                .hint("choose a directory that this user can reach: --dir")),
        }
    }

    /// Makes a directory that only this user may read.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn make_dir(&self, path: &Path) -> Result<()> {
        let failed = |e| Error::io(format!("could not make the directory {path:?}"), e);
        DirBuilder::new().mode(0o700).create(path).map_err(failed)?;
        if self.is_other {
            chown(path, Some(self.uid), Some(self.gid)).map_err(failed)?;
        }
        Ok(())
    }

    /// Gives restored files to this user where they belong to another one: their owner may have another number here.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn own(&self, top: &Path) -> Result<()> {
        if !self.is_other || !top.exists() {
            return Ok(());
        }
        let mut left = vec![top.to_owned()];
        while let Some(path) = left.pop() {
            self.own_one(&path, &mut left).map_err(|e| {
                Error::io(format!("could not give {path:?} to user {}", self.uid), e)
            })?;
        }
        Ok(())
    }

    fn own_one(&self, path: &Path, left: &mut Vec<PathBuf>) -> std::io::Result<()> {
        let meta = fs::symlink_metadata(path)?;
        if (meta.uid(), meta.gid()) != (self.uid, self.gid) {
            lchown(path, Some(self.uid), Some(self.gid))?;
        }
        if meta.is_dir() {
            for entry in fs::read_dir(path)? {
                left.push(entry?.path());
            }
        }
        Ok(())
    }

    /// A program that runs as this user, without secrets and settings of this process.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        without_secrets(&mut command);
        for (name, _) in env::vars_os() {
            // `PGDATA`, `PGOPTIONS` and others are about other servers.
            if name.to_str().is_some_and(|name| name.starts_with("PG")) {
                command.env_remove(name);
            }
        }
        if self.is_other {
            // The library drops the groups of root too.
            command.uid(self.uid).gid(self.gid);
        }
        command.env("LC_ALL", "C").process_group(0);
        command
    }
}

fn owner_of(data: &Path) -> Result<(u32, u32)> {
    let failed = |e| Error::io(format!("could not read {data:?}"), e);
    let owner = |meta: Metadata| (meta.uid(), meta.gid());
    let (uid, gid) = fs::symlink_metadata(data).map(owner).map_err(failed)?;
    if uid != 0 {
        return Ok((uid, gid));
    }
    let message = "cannot run a server as root, and this host has no user postgres";
    Err(Error::new(ErrorKind::Permission, message)
        .hint("run the drill as another user, or make a user postgres"))
}
