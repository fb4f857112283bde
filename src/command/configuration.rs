//! What the configuration of a cluster says of where its server was. The restored one would go on there: start in the old data
//! directory, or have its configuration written over the old one's, through a link.

use super::cluster::content;
use crate::{
    error::{Kind as ErrorKind, Result, quoted},
    format::{
        entry::{self, Kind, Path as EntryPath},
        root::Cluster,
    },
    postgres::restore::{AUTO_CONF, conf},
    source::archive::Archive,
};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

const MAIN: &[u8] = b"postgresql.conf";
/// Settings with the path of a file that two servers would share.
const SHARED: [&str; 3] = ["hba_file", "ident_file", "external_pid_file"];

/// See the module.
pub(super) struct Configuration {
    /// `postgresql.conf`, if the backup has it.
    main: Option<Vec<u8>>,
    /// What the server itself has written.
    auto: Option<Vec<u8>>,
    /// Files that are links, and where to; only those that lead out of what is restored.
    links: Vec<(&'static [u8], EntryPath)>,
    /// Where it will be.
    to: PathBuf,
}

impl Configuration {
    /// That of a backup, which will be restored to `to`.
    ///
    /// # Errors
    /// Damage to a page, and those of [`content`].
    pub(super) fn read(archive: &Archive, to: &Path) -> Result<Self> {
        let to = std::path::absolute(to).unwrap_or_else(|_| to.to_owned());
        let (mut main, mut links) = (settings(archive, MAIN)?, Vec::new());
        for name in conf::FILES.map(str::as_bytes) {
            let Some(target) = link(archive, name)? else { continue };
            let text = within(&to, &target).map_or(Ok(None), |path| settings(archive, &path))?;
            if text.is_none() {
                links.push((name, target));
            } else if name == MAIN {
                main = text;
            }
        }
        Ok(Self { main, auto: settings(archive, AUTO_CONF)?, links, to })
    }

    /// What a setting is set to.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        [&self.auto, &self.main].into_iter().flatten().find_map(|text| conf::value(text, name))
    }

    /// What the restored server will share with the old one, or not have.
    pub(super) fn notes(&self, cluster: &Cluster) -> Vec<String> {
        let link = |(name, target): &(&[u8], EntryPath)| {
            format!("{} is a link to {}, which is not in the backup", quoted(name), quoted(target))
        };
        let shared = SHARED.into_iter().filter_map(|name| Some((name, self.elsewhere(self.value(name)?)?)));
        let missing = self.main.is_none() && !self.links.iter().any(|(name, _)| *name == MAIN);
        let missing = missing.then(|| not_in_the_backup(cluster));
        let shared =
            shared.map(|(name, path)| format!("{name} is set to {path:?}: the restored server uses that file too"));
        missing.into_iter().chain(self.links.iter().map(link)).chain(shared).collect()
    }

    /// What is to be done before the server is started.
    pub(super) fn before_start(&self) -> Option<String> {
        let Some(main) = &self.main else { return Some(self.bring()) };
        // The server looks for this one in `postgresql.conf` alone.
        let data = self.elsewhere(conf::value(main, "data_directory")?)?;
        let conf = self.to.join("postgresql.conf");
        Some(format!("take data_directory = {data:?} out of {conf:?}: with it the server starts there"))
    }

    /// With the place of the old data directory in it, the server would start there. What is copied to a link is written to where
    /// that leads: to what the old server has.
    fn bring(&self) -> String {
        let links: Vec<_> = self.links.iter().map(|(name, _)| quoted(&self.at(name))).collect();
        let first = match &links[..] {
            [] => String::new(),
            links => format!("remove {}, so that nothing is written to where that leads; then ", links.join(" and ")),
        };
        format!("{first}put \"pg_hba.conf\" and a \"postgresql.conf\" that sets no data_directory into {:?}", self.to)
    }

    fn at(&self, name: &[u8]) -> EntryPath {
        self.to.join(OsStr::from_bytes(name)).into_os_string().into_encoded_bytes()
    }

    /// The path, unless it is below what is restored.
    fn elsewhere(&self, path: String) -> Option<String> {
        (!Path::new(&path).starts_with(&self.to)).then_some(path)
    }
}

fn not_in_the_backup(cluster: &Cluster) -> String {
    let places: Vec<_> = cluster.configuration.iter().map(|path| quoted(&path.0)).collect();
    let places = if places.is_empty() { "elsewhere".to_owned() } else { format!("in {}", places.join(", ")) };
    format!("\"postgresql.conf\" is not in the backup: the server had its configuration {places}")
}

/// The text of a configuration file; nothing if it is damaged, which the restore of the file itself will tell.
fn settings(archive: &Archive, path: &[u8]) -> Result<Option<Vec<u8>>> {
    match content(archive, path) {
        Err(error) if error.kind == ErrorKind::Corrupt => Ok(Some(Vec::new())),
        other => Ok(other?.map(|(_, text)| text)),
    }
}

/// Where the entry at `path` leads, if it is a link.
fn link(archive: &Archive, path: &[u8]) -> Result<Option<EntryPath>> {
    let items = archive.find(path)?;
    Ok(items.first().and_then(|item| match &item.entry.kind {
        Kind::Symlink(target) if item.state.is_stored() => Some(target.clone()),
        _ => None,
    }))
}

/// The path in the backup that a link directly in `to` leads to, if it stays there.
fn within(to: &Path, target: &[u8]) -> Option<EntryPath> {
    let target = Path::new(OsStr::from_bytes(target));
    let target = if target.is_absolute() { target.strip_prefix(to).ok()? } else { target };
    let mut path = EntryPath::new();
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => path = entry::join(&path, name.as_bytes()),
            _ => return None,
        }
    }
    Some(path)
}
