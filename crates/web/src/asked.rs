//! What pages are asked, and about what.

use crate::{http::request::Fields, place::Place, restores::Restores};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_repository::archive::{Archive, Selection};
use std::sync::Arc;

/// What is shown, and what may be done.
pub(crate) struct Shown {
    pub(crate) places: Vec<Place>,
    pub(crate) restores: Restores,
}

/// A request for a page: what is shown, and the fields of its query.
pub(crate) struct Asked<'a> {
    pub(crate) shown: &'a Shown,
    pub(crate) fields: &'a Fields,
}

impl<'a> Asked<'a> {
    /// The repository with the number `r`, from 0.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(crate) fn place(&self) -> Result<&'a Place> {
        let number = self.place_number();
        let place = self.shown.places.get(number);
        place.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such repository"))
    }

    /// The number `r`.
    pub(crate) fn place_number(&self) -> usize {
        self.fields.number("r").unwrap_or(0) as usize
    }

    /// Opens the backup `b`.
    ///
    /// # Errors
    /// As [`Place::archive`].
    pub(crate) fn archive(&self) -> Result<Arc<Archive>> {
        self.place()?.archive(self.backup())
    }

    /// The id `b`.
    pub(crate) fn backup(&self) -> &'a str {
        self.fields.text("b").unwrap_or_default()
    }

    /// The path `d`, as backups have it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a path with `..`.
    pub(crate) fn path(&self) -> Result<Vec<u8>> {
        let path = self.fields.bytes("d").unwrap_or_default();
        let normal = Selection::new(&[path])?;
        Ok(normal.paths().first().cloned().unwrap_or_default())
    }
}
