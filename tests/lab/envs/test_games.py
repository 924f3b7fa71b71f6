"""The games by name."""

import pytest
from ale_py import roms

from popart.lab.envs.games import ATARI, SMALL, check_game, is_atari, published, title


def test_ale_has_all_57_games_of_the_paper() -> None:
    assert len(set(ATARI)) == 57
    for game in ATARI:
        assert roms.get_rom_path(game) is not None


def test_games_have_titles_and_published_scores_if_they_are_atari_games() -> None:
    assert [title(game) for game in ("ms_pacman", "up_n_down", "catch")] == [
        "Ms. Pac-Man",
        "Up and Down",
        "Catch",
    ]
    assert all(title(game) for game in (*ATARI, *SMALL))
    assert [is_atari(game) for game in ("pong", "catch")] == [True, False]
    pong = published("pong")
    assert pong is not None
    assert (pong.random, pong.human) == (-20.7, 14.6)
    assert published("catch") is None


def test_a_game_that_does_not_exist_is_named_with_a_suggestion() -> None:
    with pytest.raises(
        ValueError, match=r"game is 'mspacman'; did you mean 'ms_pacman'\? It may be one of alien"
    ):
        check_game("mspacman")
    for game in (*ATARI, *SMALL):
        check_game(game)
