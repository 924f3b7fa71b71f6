"""Double DQN with and without Pop-Art (Section 4). It knows no environment."""
