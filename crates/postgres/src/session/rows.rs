//! Rows of the server's answers. A value of an unexpected type is an error.

use super::{Session, connect};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::EntryName,
};
use postgres::types::{FromSql, ToSql, Type};

pub(super) struct SqlRow(pub(super) postgres::Row);

impl SqlRow {
    /// Returns column `index`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the column is of another type, or is text that is not UTF-8.
    pub(super) fn get<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T> {
        self.0.try_get(index).map_err(|error| {
            let name = self
                .0
                .columns()
                .get(index)
                .map_or("", |column| column.name());
            Error::new(
                ErrorKind::Unsupported,
                format!("cannot understand the server's answer: column {index}, {name:?}"),
            )
            .because(connect::reason(&error))
        })
    }

    /// Returns column `column`, bytes, as a name; `None` if it is null.
    pub(super) fn name(&self, column: usize) -> Result<Option<EntryName>> {
        Ok(self.get::<Option<Vec<u8>>>(column)?.map(EntryName))
    }
}

/// SQL for the bytes of a text as the server stores them.
///
/// Names of databases and paths have the encoding of their author. As text, the server would translate them to the encoding of the
/// session, or refuse to; `decode` copies bytes, and gives only backslashes a meaning.
macro_rules! stored_bytes {
    ($text:literal) => {
        concat!(
            "decode(replace(",
            $text,
            ", chr(92), chr(92) || chr(92)), 'escape')"
        )
    };
}
pub(super) use stored_bytes;

impl Session {
    /// Runs a statement whose answer has one row.
    pub(super) fn row(
        &mut self,
        message: &str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<SqlRow> {
        single_row(message, self.rows(message, sql, params)?)
    }

    /// Runs a statement. An error that ends the session, or makes the server drop the slot, is
    /// recorded.
    pub(super) fn rows(
        &mut self,
        message: &str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<SqlRow>> {
        match self.client()?.query_typed(sql, params) {
            Ok(rows) => Ok(rows.into_iter().map(SqlRow).collect()),
            Err(error) if self.is_closed() || connect::is_fatal(&error) => {
                Err(self.loss_error(&error))
            }
            Err(error) => {
                let failed = connect::server_error(message, &error);
                if self.slot.take().is_some() {
                    self.dropped = Some(failed.line());
                }
                Err(failed)
            }
        }
    }
}

fn single_row(message: &str, mut rows: Vec<SqlRow>) -> Result<SqlRow> {
    rows.pop()
        .ok_or_else(|| Error::new(ErrorKind::System, message).because("the server gave no row"))
}
