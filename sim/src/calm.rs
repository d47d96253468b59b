//! The graph of calm moves: does every way through it end, and how long is the longest?

/// States by number; the moves of each are pushed, then sealed, in the order of their numbers.
#[derive(Default)]
pub(crate) struct Calm {
    targets: Vec<u32>,
    ends: Vec<usize>,
}

pub(crate) enum Way {
    /// After so many moves at most.
    Ends(u32),
    /// From `at` through these states and back.
    GoesRound { at: u32, through: Vec<u32> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Not,
    OnTheWay,
    Done,
}

impl Calm {
    pub(crate) fn push(&mut self, target: u32) {
        self.targets.push(target);
    }

    pub(crate) fn seal(&mut self) {
        self.ends.push(self.targets.len());
    }

    fn of(&self, at: u32) -> &[u32] {
        let at = at as usize;
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ends
            .get(at)
            .map_or(&[], |end| &self.targets[begin..*end])
    }

    /// Depth first: a state that is met while it is on the way closes a circle.
    pub(crate) fn longest(&self) -> Way {
        let count = self.ends.len();
        let mut seen = vec![Seen::Not; count];
        let mut height = vec![0_u32; count];
        let mut longest = 0;
        for root in 0..count {
            if seen[root] != Seen::Not {
                continue;
            }
            seen[root] = Seen::OnTheWay;
            let mut way = vec![(u32::try_from(root).unwrap_or(u32::MAX), 0)];
            while let Some((at, tried)) = way.last_mut() {
                let here = *at as usize;
                let Some(to) = self.of(*at).get(*tried).copied() else {
                    seen[here] = Seen::Done;
                    longest = longest.max(height[here]);
                    let done = height[here];
                    way.pop();
                    if let Some((from, _)) = way.last() {
                        let from = *from as usize;
                        height[from] = height[from].max(done + 1);
                    }
                    continue;
                };
                *tried += 1;
                match seen.get(to as usize) {
                    Some(Seen::Not) => {
                        seen[to as usize] = Seen::OnTheWay;
                        way.push((to, 0));
                    }
                    Some(Seen::OnTheWay) => {
                        let round = way.iter().skip_while(|(at, _)| *at != to).skip(1);
                        let mut through: Vec<u32> = round.map(|(at, _)| *at).collect();
                        through.push(to);
                        return Way::GoesRound { at: to, through };
                    }
                    Some(Seen::Done) => {
                        height[here] = height[here].max(height[to as usize] + 1);
                    }
                    None => {}
                }
            }
        }
        Way::Ends(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[&[u32]]) -> Calm {
        let mut calm = Calm::default();
        for targets in edges {
            targets.iter().for_each(|target| calm.push(*target));
            calm.seal();
        }
        calm
    }

    #[test]
    fn the_longest_way_counts_and_a_circle_is_found() {
        let ends = graph(&[&[1, 2], &[2], &[3], &[]]);
        assert!(matches!(ends.longest(), Way::Ends(3)));
        let round = graph(&[&[1], &[2], &[3], &[1, 0]]);
        match round.longest() {
            Way::GoesRound { at, through } => {
                assert_eq!((at, through), (1, vec![2, 3, 1]));
            }
            Way::Ends(longest) => panic!("ends after {longest}"),
        }
    }
}
