//! Reads a backup from tapes.
//!
//! The root says where each part stands, so a frame is found with one locate. Root and manifest come from the local
//! catalog, if it has the newest backup on the tape, and else from the tape. All of the manifest is copied before
//! the first frame is read: pages stand far from the frames that they describe.

mod find;
mod part;
mod reader;
mod record_cache;

use super::object::{ObjectName, ObjectReader};
use crate::{from_word::LATEST, tape_catalog::TapeCatalog, volume_catalog::CatalogedBackup};
use find::{FoundRoot, end_of_data, find_root};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::is_backup_id,
    page::SegmentId,
    root::{EarlierPlace, PageAt, Root, TapePlace},
    segment::SERVICE_HEADER_BYTES,
    sizes,
};
use fullbore_pipeline::sink::{Place, place_of};
use fullbore_platform::{queue::Locked, write};
use fullbore_storage::Storages;
use fullbore_tape::{TapeLabel, is_tape_name};
use part::Part;
use reader::{PartId, TapeReader};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex},
};

/// Bytes of pages that are copied at once.
const COPIED_BYTES: u64 = 1 << 20;
/// Longer records are refused: a reader needs memory for some of them.
const MOST_RECORD_BYTES: u32 = 16 << 20;

/// A backup on tapes.
pub(super) struct TapeSet {
    storages: Storages,
    reader: Arc<TapeReader>,
    /// Id of the backup.
    set: String,
    /// The part with the root.
    newest: u32,
    /// The parts of the backup, and those of earlier ones that it refers to.
    places: BTreeMap<PartId, TapePlace>,
    /// The pages of the manifest.
    pages: Vec<PageAt>,
    parts: Mutex<BTreeMap<PartId, Arc<Part>>>,
    manifest: Mutex<Option<Arc<File>>>,
}

impl TapeSet {
    /// The backup as the catalog describes it. No drive is opened.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a root without places.
    pub(super) fn known(
        storages: &Storages,
        drive: &OsStr,
        known: CatalogedBackup,
    ) -> Result<(Self, Root)> {
        let reader = Arc::new(TapeReader::new(storages, drive));
        Self::of_catalog(storages, &reader, known)
    }

    /// Opens a backup by the tape in the drive, or by the catalog: the one whose id begins with `backup`, or the newest one.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none; those of the drive and of keys.
    pub(super) fn open(
        storages: &Storages,
        drive: &OsStr,
        backup: Option<&str>,
    ) -> Result<(Self, Root)> {
        let wanted = backup.filter(|id| *id != LATEST);
        let catalog = TapeCatalog::of(storages);
        let reader = Arc::new(TapeReader::new(storages, drive));
        let label = if drive.is_empty() {
            let message = "could not find a backup on tapes";
            let error = Error::new(ErrorKind::NotFound, message);
            Err(error
                .because("the catalog of this host has none")
                .hint("name the drive, as in tape:/dev/nst0"))
        } else {
            reader.load()
        };
        let tape = label.as_ref().ok().map(|label| &label.tape[..]);
        let known = cataloged(&catalog, wanted, tape)?;
        let label = match (label, known) {
            (Err(_), Some(known)) => return Self::of_catalog(storages, &reader, known),
            (Err(error), None) => return Err(error),
            (Ok(_), Some(known)) if wanted.is_some() => {
                return Self::of_catalog(storages, &reader, known);
            }
            (Ok(label), Some(known)) => match end_of_data(&reader)? {
                Some(end) if end != known_end(&known.root, &label.tape) => label,
                _ => return Self::of_catalog(storages, &reader, known),
            },
            (Ok(label), None) => label,
        };
        Self::find(storages, &reader, &label, wanted)
    }

    /// Finds a backup on the tape in the drive, whatever the catalog has.
    ///
    /// # Errors
    /// As [`TapeSet::open`].
    fn find(
        storages: &Storages,
        reader: &Arc<TapeReader>,
        label: &TapeLabel,
        wanted: Option<&str>,
    ) -> Result<(Self, Root)> {
        if !(1..=MOST_RECORD_BYTES).contains(&label.record_bytes) {
            return Err(bad_places());
        }
        match find_root(storages, reader, label, wanted)? {
            Some(FoundRoot {
                mut root,
                is_sealed,
            }) => {
                if let Some(facts) = &mut root.volume {
                    facts.is_sealed = is_sealed;
                }
                let set = Self::of_root(storages, reader, &root, None)?;
                Ok((set, root))
            }
            None => {
                let name = wanted.map_or("a backup".to_owned(), |id| format!("backup {id:?}"));
                let message = format!("could not find {name} on tape {:?}", label.tape);
                Err(Error::new(ErrorKind::NotFound, message)
                    .because("it has no whole part of it")
                    .hint("if the backup goes on on other tapes, insert the last one"))
            }
        }
    }

    /// Opens the newest backup on the tape in the drive, whatever the catalog has, and stores it in the catalog.
    ///
    /// # Errors
    /// As [`TapeSet::open`]; the system's about the catalog.
    pub(super) fn scan(storages: &Storages, drive: &OsStr) -> Result<(Self, Root)> {
        let reader = Arc::new(TapeReader::new(storages, drive));
        let label = reader.load()?;
        let (set, root) = Self::find(storages, &reader, &label, None)?;
        let bytes = fullbore_format::seal::seal(&root)?;
        let manifest = set.manifest()?;
        TapeCatalog::of(storages).store(&root.id, &bytes, |out| copy_file(&manifest, out))?;
        Ok((set, root))
    }

    fn of_catalog(
        storages: &Storages,
        reader: &Arc<TapeReader>,
        known: CatalogedBackup,
    ) -> Result<(Self, Root)> {
        let CatalogedBackup { root, manifest } = known;
        let set = Self::of_root(storages, reader, &root, Some(Arc::new(manifest)))?;
        Ok((set, root))
    }

    fn of_root(
        storages: &Storages,
        reader: &Arc<TapeReader>,
        root: &Root,
        manifest: Option<Arc<File>>,
    ) -> Result<Self> {
        let mut places = BTreeMap::new();
        for segment in &root.segments {
            let place = segment
                .tape
                .clone()
                .filter(is_sound)
                .ok_or_else(bad_places)?;
            places.insert((root.id.clone(), segment.number), place);
        }
        let stored = places.values().flat_map(|place| &place.extents);
        let stored_bytes = sizes::sum(stored.map(|extent| extent.bytes));
        // All pages stand on the tapes. A root that says more would fill the temporary directory.
        if sizes::sum(root.pages.iter().map(|page| page.bytes)) > stored_bytes {
            return Err(bad_places());
        }
        for EarlierPlace {
            backup,
            number,
            tape,
        } in &root.earlier_places
        {
            let place = Some(tape.clone()).filter(is_sound).ok_or_else(bad_places)?;
            if !is_backup_id(backup) || *backup == root.id {
                return Err(bad_places());
            }
            places.insert((backup.clone(), *number), place);
        }
        reader.expect(&places);
        let own = root.pages.iter().filter(|page| page.backup.is_empty());
        Ok(Self {
            storages: storages.clone(),
            reader: reader.clone(),
            set: root.id.clone(),
            newest: root.volume.unwrap_or_default().number,
            places,
            pages: own.cloned().collect(),
            parts: Mutex::default(),
            manifest: Mutex::new(manifest),
        })
    }

    fn own_id(&self, number: u32) -> PartId {
        (self.set.clone(), number)
    }

    fn own_part(&self, number: u32) -> Result<Arc<Part>> {
        self.part(&self.own_id(number))
    }

    fn part(&self, id: &PartId) -> Result<Arc<Part>> {
        if let Some(part) = self.parts.locked().get(id) {
            return Ok(part.clone());
        }
        let name = self.part_name(id);
        let place = self
            .places
            .get(id)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("could not find {name}")))?;
        let part = Part::open(&self.storages, &self.reader, &id.0, place.clone(), &name)?;
        let part = Arc::new(part);
        self.parts.locked().insert(id.clone(), part.clone());
        Ok(part)
    }

    fn part_name(&self, id: &PartId) -> String {
        let place = self.places.get(id);
        let tapes = place.map(|place| {
            let names = place
                .extents
                .iter()
                .map(|extent| format!("{:?}", extent.tape));
            names.collect::<Vec<_>>().join(" and ")
        });
        let (set, number) = id;
        let of = match *set == self.set {
            true => String::new(),
            false => format!(" of backup {set:?}"),
        };
        format!("part {number}{of} on tape {}", tapes.unwrap_or_default())
    }

    /// Returns the manifest as a file.
    fn manifest(&self) -> Result<Arc<File>> {
        let mut manifest = self.manifest.locked();
        if let Some(file) = &*manifest {
            return Ok(file.clone());
        }
        let file = Arc::new(self.copied_manifest()?);
        *manifest = Some(file.clone());
        Ok(file)
    }

    /// Copies the pages into a temporary file. A page that cannot be read is missing in it: it is read from its
    /// part again when it is needed, and that error is told.
    fn copied_manifest(&self) -> Result<File> {
        let file = write::anonymous_file(&std::env::temp_dir()).map_err(not_copied)?;
        let catalog = self.catalog_part();
        let mut offset = match catalog {
            Some(number) => self.behind_label(number).unwrap_or(u64::MAX),
            None => 0,
        };
        for page in &self.pages {
            let is_in_catalog = catalog.is_some_and(|number| page.segment < number);
            let (part, begin) = match catalog.filter(|_| is_in_catalog) {
                Some(number) => {
                    let begin = offset.saturating_add(SERVICE_HEADER_BYTES as u64);
                    offset = begin.saturating_add(page.bytes);
                    (number, begin)
                }
                None => (page.segment, page.offset),
            };
            match self.copy_page(page, part, begin, &file) {
                Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::NotFound) => {
                    fullbore_platform::debug(|| error.line());
                }
                copied => copied?,
            }
        }
        Ok(file)
    }

    /// Returns the newest part that begins with the pages of all before it.
    fn catalog_part(&self) -> Option<u32> {
        let own = self.own_id(0)..=self.own_id(self.newest);
        let mut places = self.places.range(own).rev();
        let found = places.find(|(_, place)| place.has_catalog);
        found.map(|((_, number), _)| *number)
    }

    fn behind_label(&self, number: u32) -> Result<u64> {
        self.own_part(number)?.reader().label_end()
    }

    fn copy_page(&self, page: &PageAt, part: u32, begin: u64, file: &File) -> Result<()> {
        let Some(to) = page.manifest_offset else {
            return Ok(());
        };
        let part = self.own_part(part)?;
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < page.bytes {
            let len = COPIED_BYTES.min(page.bytes - done) as usize;
            part.read_at(begin.saturating_add(done), len, &mut buffer)?;
            write::pwrite_all(file, &buffer, to.saturating_add(done)).map_err(not_copied)?;
            done += len as u64;
        }
        Ok(())
    }

    fn read_manifest(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let damaged = || Error::corrupt("could not read the manifest of the tapes");
        let known = self
            .pages
            .iter()
            .any(|page| page.manifest_offset == Some(offset) && page.bytes == len as u64);
        if !known {
            return Err(damaged().because("it has no such page"));
        }
        let file = self.manifest()?;
        let missing = |error| damaged().because(error);
        if offset.saturating_add(len as u64) > file.metadata().map_err(missing)?.len() {
            return Err(damaged().because("it ends too early"));
        }
        out.clear();
        out.resize(len, 0);
        file.read_exact_at(out, offset).map_err(missing)
    }

    /// Returns the part that an object is; it may be one of an earlier backup.
    fn id_of(&self, object: &ObjectName) -> Option<PartId> {
        match object {
            ObjectName::Root => Some(self.own_id(self.newest)),
            ObjectName::Segment(
                segment @ SegmentId {
                    stream: 1, number, ..
                },
            ) => Some((self.set_of(segment), *number)),
            _ => None,
        }
    }

    /// Returns the id of the backup of a segment.
    fn set_of(&self, segment: &SegmentId) -> String {
        match &segment.backup[..] {
            "" => self.set.clone(),
            earlier => earlier.to_owned(),
        }
    }

    fn part_of(&self, object: &ObjectName) -> Result<Arc<Part>> {
        let id = self.id_of(object).ok_or_else(|| {
            let message = format!("could not find {}", self.name(object));
            Error::new(ErrorKind::NotFound, message)
        })?;
        self.part(&id)
    }
}

fn not_copied(error: std::io::Error) -> Error {
    Error::io("could not write pages to a temporary file", error)
}

fn copy_file(file: &File, out: &mut dyn Write) -> Result<()> {
    let mut buffer = vec![0; COPIED_BYTES as usize];
    let mut offset = 0;
    loop {
        let read = file.read_at(&mut buffer, offset).map_err(not_copied)?;
        if read == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..read]).map_err(not_copied)?;
        offset += read as u64;
    }
}

/// Returns the newest backup of the catalog whose id begins with `wanted`; else one on this tape, if a tape is there.
fn cataloged(
    catalog: &TapeCatalog,
    wanted: Option<&str>,
    tape: Option<&str>,
) -> Result<Option<CatalogedBackup>> {
    let is_wanted = |root: &Root| match (wanted, tape) {
        (Some(id), _) => root.id.starts_with(id),
        (None, Some(tape)) => root.tapes().values().any(|name| *name == tape),
        (None, None) => true,
    };
    let roots = catalog.roots()?;
    let found = roots.iter().find(|root| is_wanted(root));
    Ok(found.and_then(|root| catalog.read(&root.id)))
}

/// Returns where the data of a tape ends if this backup is the last on it: behind the mark of its last part there.
fn known_end(root: &Root, tape: &str) -> u64 {
    let places = root
        .segments
        .iter()
        .filter_map(|segment| segment.tape.as_ref());
    let ends = places.flat_map(|place| {
        let record_bytes = u64::from(place.record_bytes.max(1));
        let own = place.extents.iter().filter(|extent| extent.tape == tape);
        own.map(move |extent| {
            let records = extent.bytes.div_ceil(record_bytes);
            extent.block.saturating_add(records).saturating_add(1)
        })
    });
    ends.max().unwrap_or(0)
}

/// Returns whether a place is one that this program writes: names can be shown, and no sum is too large.
fn is_sound(place: &TapePlace) -> bool {
    let bytes = place.extents.iter().try_fold(0u64, |sum, extent| {
        sum.checked_add(extent.bytes)
            .filter(|_| is_tape_name(&extent.tape))
    });
    (1..=MOST_RECORD_BYTES).contains(&place.record_bytes)
        && bytes.is_some_and(|bytes| bytes <= i64::MAX as u64)
}

fn bad_places() -> Error {
    Error::corrupt("the root of a backup on tapes is damaged")
        .because("it does not say where all parts stand")
}

impl ObjectReader for TapeSet {
    fn read_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match object {
            ObjectName::Manifest(backup) if backup.is_empty() || *backup == self.set => {
                self.read_manifest(offset, len, out)
            }
            ObjectName::Root => Err(Error::new(
                ErrorKind::NotFound,
                "the root of a backup on tapes is read once",
            )),
            _ => self.part_of(object)?.read_at(offset, len, out),
        }
    }

    fn len(&self, object: &ObjectName) -> Result<u64> {
        Ok(self.part_of(object)?.bytes)
    }

    fn name(&self, object: &ObjectName) -> String {
        match object {
            ObjectName::Root => {
                format!("the root in {}", self.part_name(&self.own_id(self.newest)))
            }
            ObjectName::Manifest(_) => format!("the manifest of backup {:?}", self.set),
            ObjectName::Segment(id) => self.part_name(&(self.set_of(id), id.number)),
        }
    }

    fn is_one_file(&self) -> bool {
        true
    }

    fn places(&self) -> Vec<Place> {
        let file = self.reader.simulated_file();
        file.and_then(place_of).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::root::{Segment, TapeExtent};

    fn place(record_bytes: u32, tape: &str, bytes: u64) -> TapePlace {
        let extent = TapeExtent {
            tape: tape.to_owned(),
            volume: 1,
            block: 2,
            bytes,
        };
        TapePlace {
            record_bytes,
            extents: vec![extent.clone(), extent],
            ..TapePlace::default()
        }
    }

    fn root(place: TapePlace, page_bytes: u64) -> Root {
        Root {
            segments: vec![Segment {
                number: 1,
                tape: Some(place),
                ..Segment::default()
            }],
            pages: vec![PageAt {
                bytes: page_bytes,
                ..PageAt::default()
            }],
            ..Root::default()
        }
    }

    #[test]
    fn places_that_this_program_does_not_write_are_damage() {
        let storages = Storages::default();
        let reader = Arc::new(TapeReader::new(&storages, OsStr::new("")));
        let open = |root: &Root| TapeSet::of_root(&storages, &reader, root, None).map(drop);
        assert!(open(&root(place(1 << 20, "A1", 1000), 2000)).is_ok());
        for bad in [
            root(place(0, "A1", 1000), 10),
            root(place(u32::MAX, "A1", 1000), 10),
            root(place(1 << 20, "A\u{1b}[31m", 1000), 10),
            root(place(1 << 20, "", 1000), 10),
            root(place(1 << 20, "A1", u64::MAX), 10),
            root(place(1 << 20, "A1", i64::MAX as u64), 10),
            root(place(1 << 20, "A1", 1000), 2001),
            Root {
                segments: vec![Segment::default()],
                ..Root::default()
            },
        ] {
            let error = open(&bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt);
        }
        let base = "20261121T054501Z-k3abcd";
        let level = |backup: &str, tape: TapePlace| Root {
            id: "20261122T054501Z-k3abcd".to_owned(),
            earlier_places: vec![EarlierPlace {
                backup: backup.to_owned(),
                number: 1,
                tape,
            }],
            ..root(place(1 << 20, "A1", 1000), 2000)
        };
        assert!(open(&level(base, place(1 << 20, "A0", 1000))).is_ok());
        for bad in [
            level(base, place(0, "A0", 1000)),
            level(base, place(1 << 20, "A\u{1b}[31m", 1000)),
            level("../a", place(1 << 20, "A0", 1000)),
            level("20261122T054501Z-k3abcd", place(1 << 20, "A0", 1000)),
        ] {
            assert_eq!(open(&bad).unwrap_err().kind, ErrorKind::Corrupt);
        }
        // The pages of the base are not in its places.
        let more = Root {
            pages: root(place(1, "A1", 1), 2001).pages,
            ..level(base, place(1 << 20, "A0", 1000))
        };
        assert!(open(&more).is_err());
    }

    #[test]
    fn the_end_of_the_last_part_is_the_end_of_the_data() {
        // Two records, and one that is not full; a mark.
        let root = root(place(1000, "A1", 2001), 0);
        assert_eq!(known_end(&root, "A1"), 2 + 3 + 1);
        assert_eq!(known_end(&root, "A2"), 0);
    }
}
