//! Objects by id, in a vector: a list walks memory in order, a status finds its object by hash.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Something with an id that never changes.
pub(crate) trait Identified {
    fn id(&self) -> &Arc<str>;
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    items: Vec<T>,
    /// Where each id is in `items`.
    places: FxHashMap<Arc<str>, usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            places: FxHashMap::default(),
        }
    }
}

impl<T: Identified> Table<T> {
    pub(crate) fn get(&self, id: &str) -> Option<&T> {
        self.places.get(id).and_then(|&place| self.items.get(place))
    }

    pub(crate) fn get_mut(&mut self, id: &str) -> Option<&mut T> {
        self.places.get(id).and_then(|&place| self.items.get_mut(place))
    }

    /// The full id of the only object whose id begins so. Only clients that people type for need it, so it may take its time.
    pub(crate) fn full_id(&self, prefix: &str) -> Option<&Arc<str>> {
        if prefix.is_empty() {
            return None;
        }
        let mut found = self.items.iter().map(T::id).filter(|id| id.starts_with(prefix));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// The object at a place, for a random choice. Places change with every removal.
    pub(crate) fn at(&self, place: usize) -> Option<&T> {
        self.items.get(place)
    }

    /// Adds an object; one with the same id makes room.
    pub(crate) fn insert(&mut self, item: T) {
        self.remove(&Arc::clone(item.id()));
        self.places.insert(Arc::clone(item.id()), self.items.len());
        self.items.push(item);
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<T> {
        let place = self.places.remove(id)?;
        let item = self.items.swap_remove(place);
        if let Some(moved) = self.items.get(place) {
            self.places.insert(Arc::clone(moved.id()), place);
        }
        Some(item)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Identified for Arc<str> {
        fn id(&self) -> &Arc<str> {
            self
        }
    }

    #[test]
    fn a_prefix_is_an_id_if_it_is_the_only_one() {
        let mut table = Table::default();
        for name in ["abc", "abd", "x"] {
            table.insert(Arc::<str>::from(name));
        }
        let full = |prefix| table.full_id(prefix).map(|id| &**id);
        assert_eq!((full("abd"), full("x"), full("ab")), (Some("abd"), Some("x"), None));
        assert_eq!((full(""), full("y")), (None, None));
    }

    #[test]
    fn removal_keeps_every_other_place() {
        let mut table = Table::default();
        for name in ["a", "b", "c", "d"] {
            table.insert(Arc::<str>::from(name));
        }
        assert_eq!(table.remove("b").as_deref(), Some("b"));
        assert_eq!(table.remove("b"), None);
        for name in ["a", "c", "d"] {
            assert_eq!(table.get(name).map(|s| &**s), Some(name));
        }
        table.insert("a".into());
        assert_eq!(table.len(), 3);
    }
}
