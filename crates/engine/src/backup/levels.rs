//! The levels of the earlier backups of a source.

use super::{Backup, source::OpenOptions};
use fullbore_format::{error::Result, root::Root};
use fullbore_repository::{
    base::is_of_source,
    level::{LeveledBackup, hanoi_level},
    open::list_backups,
    volume_series::VolumeSeries,
};
use std::sync::Arc;

impl Backup {
    /// Returns the level of the next backup by the tower of Hanoi, see [`hanoi_level`]. The earlier backups are those in the
    /// repository, or those in volumes or on tapes that the catalog of this host knows.
    ///
    /// # Errors
    /// Those of opening the source, and of reading the repository.
    pub fn hanoi_level(&self) -> Result<u8> {
        let options = OpenOptions {
            split: false,
            ..self.open_options(&Arc::default())
        };
        let subject = self.subject.open(None, options)?;
        let roots = self.earlier_roots()?;
        let earlier: Vec<_> = self.with_facts(&subject, |like| {
            let alike = roots.iter().filter(|root| is_of_source(root, like));
            alike.filter_map(LeveledBackup::of).collect()
        });
        Ok(hanoi_level(&earlier, jiff::Timestamp::now()))
    }

    /// Returns the roots of earlier backups, the newest first.
    fn earlier_roots(&self) -> Result<Vec<Root>> {
        if let Some(spec) = self.to.volumes() {
            let series = spec.catalog.as_ref();
            return Ok(series.map(VolumeSeries::roots).unwrap_or_default());
        }
        if let Some(spec) = self.to.tape() {
            return spec.catalog.lasting_roots();
        }
        let objects = self.to.storage().filter(|_| !self.to.is_new_repository());
        let Some(objects) = objects else {
            return Ok(Vec::new());
        };
        let mut roots: Vec<_> = list_backups(objects)?
            .filter_map(|(_, root)| root.ok())
            .collect();
        roots.reverse();
        Ok(roots)
    }
}
