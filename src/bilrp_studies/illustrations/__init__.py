"""Rotated illustrations: do fixed elements carry the score of drawings whose content rotates? (Figure of section 5.)"""
